"""The attempts of a run, in a file in its folder of checkpoints.

A run with `--restarts` is a sequence of attempts. The control node appends a line when an
attempt begins and a line when it fails. So the count of attempts survives the control node.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from placer.errors import CheckpointError
from placer.plan.settings.data.stream_pass import StreamPass
from placer.system.files.atomic import atomic_file, mode_of, sync_folder
from placer.system.files.locks import file_locked

ATTEMPTS: Final = "attempts.jsonl"
"""The name of the file."""
LOCK_WAIT: Final = 10.0
"""Seconds to wait for another process that appends a line."""


class AttemptBegun(msgspec.Struct, frozen=True, tag_field="attempt", tag="begun"):
    """An attempt that has begun.

    Attributes:
        run: the id of the run.
        number: the number of the attempt, from 1.
        step: the step of the newest checkpoint at that time; 0 without one.
        time: the time in seconds since 1970.
        sequence: the sequence number of that checkpoint; 0 without one.
    """

    run: str
    number: int
    step: int
    time: float
    sequence: int = 0


class AttemptFailed(msgspec.Struct, frozen=True, tag_field="attempt", tag="failed"):
    """An attempt that has failed.

    Attributes:
        run, number, time: as in `AttemptBegun`.
        node: the node that failed.
        where: its position, such as `step 5`.
        what: the error.
        is_error: whether the code of the node raised the error.
    """

    run: str
    number: int
    node: str
    where: str
    what: str
    is_error: bool
    time: float

    def is_same_error(self, other: AttemptFailed) -> bool:
        """Whether both are the same error of a node's code at the same position."""
        if not (self.is_error and other.is_error and self.where):
            return False
        mine, theirs = ((e.node, e.where, e.what) for e in (self, other))
        return mine == theirs


class AttemptFiles(msgspec.Struct, frozen=True, tag_field="attempt", tag="files"):
    """The files of the sources of a run that are sets.

    Attributes:
        run: the id of the run.
        files: the paths of each phase, in their order; of a stream with `--until now`, those
            that were there when the run began.
    """

    run: str
    files: dict[str, tuple[str, ...]]


class AttemptPass(msgspec.Struct, frozen=True, tag_field="attempt", tag="pass"):
    """A pass of a stream that a run has announced to its nodes.

    Attributes:
        run: the id of the run.
        announced: the pass.
    """

    run: str
    announced: StreamPass


Line = AttemptBegun | AttemptFailed
_AnyLine = Line | AttemptFiles | AttemptPass
_LINE: Final[msgspec.json.Decoder[_AnyLine]] = msgspec.json.Decoder(_AnyLine)


def read_attempts(folder: Path) -> list[Line]:
    """Return the attempts in a folder of checkpoints, oldest first. See `_read`."""
    return [line for line in _read(folder) if isinstance(line, Line)]


def read_files(folder: Path, run: str) -> dict[str, tuple[str, ...]]:
    """Return the files that a run reads, by phase; empty before they are known. See `_read`."""
    lines = (each for each in _read(folder) if isinstance(each, AttemptFiles))
    found: dict[str, tuple[str, ...]] = {}
    for each in lines:
        if each.run == run:
            found = each.files | found
    return found


def read_passes(folder: Path, run: str) -> dict[int, StreamPass]:
    """Return the passes that a run has announced, by number. See `_read`. If there are several
    of a number, the first one counts: a thread of an earlier attempt wrote the others."""
    found: dict[int, StreamPass] = {}
    for each in _read(folder):
        if isinstance(each, AttemptPass) and each.run == run:
            found.setdefault(each.announced.number, each.announced)
    return found


def _read(folder: Path) -> list[_AnyLine]:
    """Return the lines of the file.

    A last line that a crash has cut is left out. Raises CheckpointError if the file cannot be
    read or another line is damaged.
    """
    path = folder / ATTEMPTS
    try:
        return _decode(path.read_bytes(), path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _damaged(path, error) from error


def _decode(content: bytes, path: Path) -> list[_AnyLine]:
    *lines, _ = content.split(b"\n")
    try:
        return [_LINE.decode(line) for line in lines]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"'{path}' cannot be read: {error}",
        hint="remove the file: it only counts the attempts of a run",
    )


def add_attempt(folder: Path, line: _AnyLine, *, oldest: int = 0) -> None:
    """Append a line, and remove a last line that a crash has cut. When an attempt begins, the files
    and passes of other runs are removed: only their own attempts read them. So are passes of this
    run before the pass `oldest`, but its first one, from which `--passes` counts.

    The file is locked meanwhile, because the process of an earlier attempt may also append a line.
    Raises CheckpointError if the file cannot be written, or another line is damaged.
    """
    path = folder / ATTEMPTS
    try:
        is_new = not path.exists()
        while not _add(path, line, oldest):
            pass
        if is_new:
            sync_folder(folder)
    except BlockingIOError:
        why = f"another process has locked it for {LOCK_WAIT:g} s"
        raise CheckpointError(f"cannot write '{path}': {why}") from None
    except OSError as error:
        raise CheckpointError(f"cannot write '{path}': {error.strerror}") from error


def _add(path: Path, line: _AnyLine, oldest: int) -> bool:
    """Add a line; return False if another process has replaced the file meanwhile."""
    with path.open("a+b") as file, file_locked(file.fileno(), wait=LOCK_WAIT):
        if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return False
        added = msgspec.json.encode(line) + b"\n"
        begins = isinstance(line, AttemptBegun)
        if begins and (kept := _without_unread(file, line.run, oldest)):
            with atomic_file(path, mode_of(path)) as trimmed:
                trimmed.write(kept + added)
            return True
        end = file.seek(0, os.SEEK_END)
        if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
            file.truncate(_read_all(file).rfind(b"\n") + 1)
        file.write(added)
        file.flush()
        os.fsync(file.fileno())
        return True


def _without_unread(file: BinaryIO, run: str, oldest: int) -> bytes:
    """Return the lines without those that no attempt reads any more; empty if there are none."""
    content = _read_all(file)
    lines = content.split(b"\n")[:-1]
    decoded = _decode(content, Path(file.name))
    own = (
        each for each in decoded if isinstance(each, AttemptPass) and each.run == run
    )
    first = min((each.announced.number for each in own), default=0)

    def is_read(line: _AnyLine) -> bool:
        if not isinstance(line, AttemptPass):
            return isinstance(line, Line) or line.run == run
        number = line.announced.number
        return line.run == run and (number == first or number >= oldest)

    kept = [text for text, line in zip(lines, decoded, strict=True) if is_read(line)]
    return b"\n".join([*kept, b""]) if len(kept) < len(lines) else b""


def _read_all(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()


def attempts_of(lines: Sequence[Line], run: str) -> list[Line]:
    """Return the lines of the run `run`."""
    return [line for line in lines if line.run == run]


def why_no_further(lines: Sequence[Line], restarts: int, writer: str) -> str:
    """Return why a run must not begin another attempt; empty if it may.

    Args:
        lines: the lines of the run. The last one is the attempt that has just begun.
        restarts: the value of `--restarts`.
        writer: the node that writes the file. It cannot write that its process was killed.
    """
    begun = [line for line in lines if isinstance(line, AttemptBegun)]
    failed = [line for line in lines if isinstance(line, AttemptFailed)]
    step = begun[-1].step
    if failed and any(failed[-1].is_same_error(each) for each in failed[:-1]):
        return f"{failed[-1].node} failed again at the same step, with the same error"
    row = begun[-restarts - 2 :]
    if len(row) < restarts + 2 or any(each.step != step for each in row):
        return ""
    times = restarts + 1
    after = f"after step {step:,}" if step else "before the first checkpoint"
    after += f", with {restarts} restart{'s' if restarts > 1 else ''}"
    recent = lines[lines.index(row[0]) :]
    nodes = {
        line.node if isinstance(line, AttemptFailed) else writer
        for before, line in pairwise(recent)
        if isinstance(before, AttemptBegun)
    }
    if len(nodes) == 1:
        return f"{nodes.pop()} failed {times} times in a row {after}"
    return f"{times} attempts in a row failed {after}"
