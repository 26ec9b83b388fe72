"""Follows a job of Slurm by the files that its nodes write, and by what Slurm says."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from placer.engines.engine import (
    JobEvent,
    JobNote,
    NodeEnded,
    NodeLines,
)
from placer.engines.slurm.job import ENDED, SlurmJob
from placer.engines.tail import Tail
from placer.errors import RunError
from placer.files.last_line import last_line
from placer.node_kinds import NodeId
from placer.runtime.run.signals import status_of_shell

POLL: Final = 0.25
"""Seconds between two looks at the files of a job."""
FILES: Final = 50
"""Nodes of a job up to which this is enough; their files are on a shared file system."""
ASK: Final = 5.0
"""Seconds between two questions to Slurm's controller."""
SILENT: Final = 600.0
"""Seconds without an answer of Slurm's controller after which a job is given up."""
END_GRACE: Final = 10.0
"""Seconds in which files appear that a job has written, on a shared file system."""


def watch(job: SlurmJob) -> Iterator[JobEvent]:
    """Follow a job by its files, and by what Slurm says; see `Engine.watch`."""
    tails = {name: Tail(_path(job, name, "jsonl")) for name in job.nodes}
    left = [*job.nodes]
    asked, answered, note = -ASK, time.monotonic(), ""
    state, has_failed = "", False
    over: float | None = None
    while left and (over is None or time.monotonic() - over < END_GRACE):
        # Slurm ends all nodes after the first that was killed: its end is there when the
        # signals to the others are read.
        _look_again(job)
        lines = {name: tails[name].read() for name in left}
        ended = {name: end for name in left if (end := _read_end(job, name))}
        has_failed |= any(end.status != 0 for end in ended.values())
        if len(ended) == len(left) and not has_failed:
            _wait_for_script(job)
        for name in sorted(left, key=lambda name: name not in ended):
            last = tails[name].read() if name in ended else []
            if found := lines[name] + last:
                yield NodeLines(name, found)
            if name in ended:
                yield ended[name]
        left = [name for name in left if name not in ended]
        now = time.monotonic()
        if left and over is None and now - asked >= ASK:
            asked = now
            try:
                state, reason = job.ask()
                answered = now
            except RunError as error:
                if now - answered > SILENT:
                    raise RunError(
                        f"{job.title} cannot be followed any more: {error}",
                        hint=f"it goes on; this ends it: {job.cancel_command}",
                    ) from error
                reason = f"it is not known: {error}"
            if state in ENDED or not state:
                # A job that was cancelled before it began has written nothing.
                may_write = state in ("", "COMPLETED") or any(job.folder.glob("*"))
                over = now if may_write else now - END_GRACE
            elif state == "PENDING" and reason not in ("None", note):
                note = reason
                yield JobNote(f"{job.title} waits: {reason}")
        if over is None and _ended_path(job).exists():
            over = now
        time.sleep(max(POLL, POLL * len(left) / FILES))
    why = f"Slurm says that {job.title} is {state or 'unknown'}"
    if said := last_line(job.log):
        why += f": {said}"
    for name in left:
        yield NodeEnded(name, None, why)


def _look_again(job: SlurmJob) -> None:
    """List the folder of a job: a file system of several machines, such as NFS, may else
    say for a minute that a file is not there that another machine has written."""
    with suppress(OSError):  # it is not there yet
        os.listdir(job.folder)


def _wait_for_script(job: SlurmJob) -> None:
    """Wait until the batch script needs the folder of a job no more: the launcher may
    remove it after a successful run, and the job would have failed."""
    until = time.monotonic() + END_GRACE
    while not _ended_path(job).exists() and time.monotonic() < until:
        time.sleep(POLL)
        _look_again(job)


def _ended_path(job: SlurmJob) -> Path:
    """Return the file that the batch script writes at its end."""
    return job.folder / "ended"


def _path(job: SlurmJob, node: str, suffix: str) -> Path:
    return job.folder / f"{NodeId(node).stem}.{suffix}"


def _read_end(job: SlurmJob, node: str) -> NodeEnded | None:
    """Return how a node has ended, once node.sh has written it."""
    try:
        text = _path(job, node, "ended").read_text()
    except OSError:
        return None
    status, _, host = text.strip().partition(" ")
    number = status_of_shell(int(status)) if status.isdecimal() else None
    return NodeEnded(node, number, host=host)
