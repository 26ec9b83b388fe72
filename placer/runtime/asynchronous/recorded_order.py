"""Records and replays the order of events in an asynchronous run.

A file begins with the digest of the build and the id of the run. All files of a recording have
the same digest and id. Each event is a line of JSON, a list that begins with its kind and its
edge:

    ["take", 0, push, worker]     a server handles the next message of a worker
    ["use", pull, step, version]  a worker uses a version of the parameters in a step
    ["send", push, kind, steps]   a worker sends a message with the gradients of so many steps,
                                  or a request that waits for this step
    ["drain", 0, step]            a node drains after a step
    ["taken", 0, step, worker …]  a step uses the gradients of these workers
    ["join", 0, step]             a worker computes a step that uses its gradients
    ["end", 0, events, crc]       the run ended without a failure, after so many events; the
                                  CRC-32 of all lines before

Each line is written when its event happens, so the events of a killed process are kept. An order
without its end is replayed up to its last event.

In a replay, a node waits until the next recorded event can happen. Everything else follows from
these events, so a replayed run reproduces the recorded run bit by bit.
"""

from __future__ import annotations

import json
import re
import threading
import zlib
from collections import deque
from io import FileIO
from pathlib import Path
from typing import Any, Final

from placer.errors import PlacerError, RunError
from placer.place.node_kinds import NodeId

TAKE: Final = "take"
USE: Final = "use"
SEND: Final = "send"
DRAIN: Final = "drain"
TAKEN: Final = "taken"
JOIN: Final = "join"
_END: Final = "end"
_FILE: Final = re.compile(r"[a-z][a-z0-9_]*-[0-9.]+\.jsonl")
_KINDS: Final = (TAKE, USE, SEND, DRAIN, TAKEN, JOIN)
ALL_EDGES: Final = 0
"""The edge number of events that share one order per node."""


class Order:
    """The order of events on one node; by default it neither records nor replays.

    Call `begin` first. The other methods may be called from any thread.

    Args:
        record: the file to write.
        replay: the file to read.
        digest: the digest of the build; it must match the replayed file.

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
    ) -> None:
        self._lock = threading.Lock()
        self._replay = replay
        self._expected: dict[tuple[str, int], deque[list[Any]]] = {}
        self._is_whole = True
        self.replayed: str | None = None
        if replay is not None:
            self.replayed, events, self._is_whole = _read(replay, digest)
            for kind, edge, *rest in events:
                self._expected.setdefault((kind, edge), deque()).append(rest)
        self._record, self._digest = record, digest
        self._file: FileIO | None = None
        self._count = self._checksum = 0
        if record is not None:
            try:
                record.parent.mkdir(parents=True, exist_ok=True)
                self._file = record.open("xb", buffering=0)
            except FileExistsError:
                raise _of_another_run(record.parent) from None
            except OSError as error:
                raise self._unwritable(error) from None

    def begin(self, run: str) -> None:
        """Begin the file of the run with id `run`. Raises PlacerError if it cannot be written."""
        if self._file is not None:
            self._write({"digest": self._digest, "run": run})

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
                self._write([kind, edge, *rest])
                self._count += 1

    def close(self, *, ended: bool) -> None:
        """Close the file. Write the end event if the run has `ended` without a failure.
        Raises PlacerError if it cannot be written."""
        if self._file is None:
            return
        try:
            if ended:
                self._write([_END, ALL_EDGES, self._count, self._checksum])
        finally:
            self._file.close()

    def _write(self, value: Any) -> None:
        assert self._file is not None
        line = f"{json.dumps(value)}\n".encode()
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


def _read(path: Path, digest: str) -> tuple[str, list[list[Any]], bool]:
    """Return the run id of a file, its events, and whether the end event is present."""
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
    try:
        first, *events = [json.loads(line) for line in lines]
        if first["digest"] != digest:
            raise PlacerError(
                f"'{path}' was recorded with another build",
                hint="compile the spec of the recorded run, or record the order again",
            )
        run = str(first["run"])
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
    return run, events, is_whole


def _no_order(path: Path) -> PlacerError:
    return PlacerError(f"'{path}' is not a file that --record-order has written")
