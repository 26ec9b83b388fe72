"""Records and replays the order of events in an asynchronous run.

A file begins with a line of facts: the format, the digest of the build, the id of the run, and
the step after which the run began. All files of a recording have the same first line. Each event
is a line of JSON, a list that begins with its kind and its edge:

    ["take", 0, push, worker]     a server handles the next message of a worker
    ["use", pull, step, version]  a worker uses a version of the parameters in a step
    ["send", push, kind, steps]   a worker sends a message with the gradients of so many steps,
                                  or a request that waits for this step
    ["drain", 0, step]            a node drains after a step
    ["taken", 0, step, worker …]  a step uses the gradients of these workers
    ["join", 0, step]             a worker computes a step that uses its gradients
    ["saved", 0, step]            the mark of a checkpoint: its drain has ended
    ["end", 0, events, crc]       the run ended without a failure, after so many events; the
                                  CRC-32 of all lines before

Versions, and counts of gradients, begin at 0 after each drain.

Each line is written when its event happens, so the events of a killed process are kept. An order
without its end is replayed up to its last event.

With `--restarts`, each attempt continues the file. It first removes the lines behind the mark of
the checkpoint from which it continues: no event behind the mark is part of the result. A
checkpoint is complete only when the marks of all nodes are on disk. A replay skips the marks,
and so repeats a run with failures as one run.

In a replay, a node waits until the next recorded event can happen. Everything else follows from
these events, so a replayed run reproduces the recorded run bit by bit.
"""

from __future__ import annotations

import json
import os
import re
import threading
import zlib
from collections import deque
from io import FileIO
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from placer.errors import PlacerError, RunError
from placer.place.node_kinds import NodeId

TAKE: Final = "take"
USE: Final = "use"
SEND: Final = "send"
DRAIN: Final = "drain"
TAKEN: Final = "taken"
JOIN: Final = "join"
SAVED: Final = "saved"
_END: Final = "end"
_FILE: Final = re.compile(r"[a-z][a-z0-9_]*-[0-9.]+\.jsonl")
_KINDS: Final = (TAKE, USE, SEND, DRAIN, TAKEN, JOIN, SAVED)
_FORMAT: Final = 2
"""The format of the files. In format 1, versions were counted from the first step."""
ALL_EDGES: Final = 0
"""The edge number of events that share one order per node."""


class _First(msgspec.Struct):
    """The first line of a file."""

    format: int
    digest: str
    run: str
    after: int


class Order:
    """The order of events on one node; by default it neither records nor replays.

    Call `begin` first. The other methods may be called from any thread.

    Args:
        record: the file to write.
        replay: the file to read.
        digest: the digest of the build; it must match the replayed file.
        continues: whether the file to write may exist, from an earlier attempt of the run.

    Attributes:
        replayed: the id of the replayed run; None without a replay.

    Raises:
        PlacerError: if a file cannot be read or written, exists already, or belongs to
            another build.
    """

    def __init__(
        self,
        record: Path | None = None,
        replay: Path | None = None,
        digest: str = "",
        *,
        continues: bool = False,
    ) -> None:
        self._lock = threading.Lock()
        self._replay = replay
        self._expected: dict[tuple[str, int], deque[list[Any]]] = {}
        self._is_whole = True
        self._after = 0  # the step after which the replayed run began
        self.replayed: str | None = None
        if replay is not None:
            first, events, self._is_whole = _read(replay, digest)
            self.replayed, self._after = first.run, first.after
            for kind, edge, *rest in events:
                self._expected.setdefault((kind, edge), deque()).append(rest)
        self._record, self._digest = record, digest
        self._file: FileIO | None = None
        self._count = self._checksum = 0
        if record is not None:
            try:
                record.parent.mkdir(parents=True, exist_ok=True)
                self._file = record.open("a+b" if continues else "x+b", buffering=0)
            except FileExistsError:
                raise _of_another_run(record.parent) from None
            except OSError as error:
                raise self._unwritable(error) from None

    def begin(self, run: str, after: int = 0, *, is_own: bool = False) -> None:
        """Begin the file, or cut it behind the mark of a checkpoint and continue it.

        Args:
            run: the id of the run.
            after: the step of the checkpoint from which the nodes continue; 0 without one.
            is_own: whether the checkpoint is of this run, so that the file must have its mark.

        Raises:
            PlacerError: if the file cannot be written, or is the order of another run; or if
                the replayed run began after another step.
            FinalError: if the file has no mark of the checkpoint, or was removed.
        """
        if self._replay is not None and self._after != after:
            raise PlacerError(
                f"'{self._replay}' is the order of a run that began after step"
                f" {self._after}, but this run begins after step {after}",
                hint="replay with the options of the run that was recorded",
            )
        if self._file is None:
            return
        line = _encode(msgspec.to_builtins(_First(_FORMAT, self._digest, run, after)))
        try:
            with open(self._file.fileno(), "rb", closefd=False) as lines:
                lines.seek(0)
                first = lines.readline()
                is_new = not first.endswith(b"\n")
                if is_new and is_own:
                    raise self._changed("was removed: it had the order of the run")
                end = 0 if is_new else self._find_end(first, lines, run, after)
            self._file.truncate(end)
        except OSError as error:
            raise self._unwritable(error) from None
        if is_new:
            self._write(line)

    def _find_end(self, line: bytes, lines: IO[bytes], run: str, after: int) -> int:
        """Return the position behind the mark of a checkpoint, and count the events before."""
        assert self._record is not None
        first = _decode_first(line, self._record)
        if (first.format, first.digest, first.run) != (_FORMAT, self._digest, run):
            raise _of_another_run(self._record.parent)
        self._checksum, end = zlib.crc32(line), len(line)
        if first.after == after:
            return end
        mark = _encode([SAVED, ALL_EDGES, after])
        for line in lines:
            self._checksum, end = zlib.crc32(line, self._checksum), end + len(line)
            self._count += 1
            if line == mark:
                return end
        raise self._changed(
            f"has no mark of the checkpoint of step {after}, from which the run continues"
        )

    def _changed(self, how: str) -> PlacerError:
        # The launcher imports this module, without numpy.
        from placer.runtime.control.failure import FinalError

        hint = "do not change the files of an order during the run"
        return FinalError(f"'{self._record}' {how}", hint=hint)

    @property
    def replays(self) -> bool:
        """Whether an order is replayed."""
        return self._replay is not None

    def next(self, kind: str, edge: int) -> list[Any]:
        """Return the next event of this kind on an edge, in the replayed order.

        Raises:
            RunError: after the last event.
        """
        with self._lock:
            expected = self._expected.get((kind, edge))
            if expected:
                return expected.popleft()
        if self._is_whole:
            raise RunError(
                f"'{self._replay}' has no more '{kind}' events for edge {edge}",
                hint="replay with the options of the run that was recorded",
            )
        raise RunError(
            f"'{self._replay}' ends here: the recorded run failed or was killed",
            hint="the replay is correct up to this point; to replay a whole run, record"
            " one that ends normally",
        )

    def peek(self, kind: str, edge: int) -> list[Any] | None:
        """Return the next event without consuming it; None without a replay or a next event."""
        with self._lock:
            expected = self._expected.get((kind, edge))
            return expected[0] if expected else None

    def add(self, kind: str, edge: int, *rest: Any) -> None:
        """Record an event. Raises PlacerError if it cannot be written."""
        if self._file is not None:
            with self._lock:
                self._write(_encode([kind, edge, *rest]))
                self._count += 1

    def sync(self) -> None:
        """Flush the events so far to the disk (fsync). Raises PlacerError if that fails."""
        if self._file is not None:
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                raise self._unwritable(error) from None

    def close(self, *, ended: bool) -> None:
        """Close the file. Write the end event if the run has `ended` without a failure.
        Raises PlacerError if it cannot be written."""
        if self._file is None:
            return
        try:
            if ended:
                self._write(_encode([_END, ALL_EDGES, self._count, self._checksum]))
        finally:
            self._file.close()

    def _write(self, line: bytes) -> None:
        assert self._file is not None
        self._checksum = zlib.crc32(line, self._checksum)
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> PlacerError:
        return PlacerError(f"cannot write '{self._record}': {error.strerror}")


def order_file(folder: Path, node: str) -> Path:
    """Return the file of a node in a folder of orders."""
    return folder / f"{NodeId(node).stem}.jsonl"


def check_has_none(folder: Path) -> None:
    """Raise PlacerError if a folder contains a recorded order. A run neither overwrites
    nor extends the order of another run."""
    try:
        names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise PlacerError(f"cannot read '{folder}': {error.strerror}") from None
    if any(map(_FILE.fullmatch, names)):
        raise _of_another_run(folder)


def _of_another_run(folder: Path) -> PlacerError:
    return PlacerError(
        f"'{folder}' contains the recorded order of another run",
        hint="pass another folder to --record-order, or remove this one",
    )


def _encode(value: Any) -> bytes:
    return f"{json.dumps(value)}\n".encode()


def _decode_first(line: str | bytes, path: Path) -> _First:
    """Return the first line of a file; raise PlacerError if it is damaged."""
    try:
        found = json.loads(line)
        # Format 1 had no number.
        return msgspec.convert({"format": 1, "after": 0, **found}, _First)
    except (ValueError, TypeError, msgspec.ValidationError):
        raise _no_order(path) from None


def _read(path: Path, digest: str) -> tuple[_First, list[list[Any]], bool]:
    """Return the first line of a file, its events, and whether the end event is present."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlacerError(
            f"cannot read '{path}': {error.strerror}",
            hint="replay with the nodes and threads of the recorded run",
        ) from None
    except ValueError:
        raise _no_order(path) from None
    # Text after the last newline is a line that was not completely written.
    lines = text.split("\n")[:-1]
    if not lines:
        raise _no_order(path)
    first = _decode_first(lines[0], path)
    if first.digest != digest:
        raise PlacerError(
            f"'{path}' was recorded with another build",
            hint="compile the spec of the recorded run, or record the order again",
        )
    if first.format != _FORMAT:
        raise PlacerError(
            f"'{path}' was recorded with another version of placer",
            hint="record the order again",
        )
    try:
        events = [json.loads(line) for line in lines[1:]]
        is_whole = bool(events) and events[-1][0] == _END
        if is_whole:
            before = zlib.crc32("".join(f"{line}\n" for line in lines[:-1]).encode())
            if events.pop() != [_END, ALL_EDGES, len(events), before]:
                raise ValueError
        for kind, edge, *_ in events:
            if kind not in _KINDS or type(edge) is not int:
                raise ValueError
    except (ValueError, TypeError, LookupError):
        raise _no_order(path) from None
    return first, events, is_whole


def _no_order(path: Path) -> PlacerError:
    return PlacerError(f"'{path}' is not a file that --record-order has written")
