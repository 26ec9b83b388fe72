"""What the nodes of a job of Slurm have written in its folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from placer.engines.engine import NodeEnded
from placer.engines.slurm.job import SlurmJob
from placer.node_kinds import NodeId
from placer.runtime.run.signals import status_of_shell

_LOG: Final = 1 << 16
"""Bytes at the end of a log that are read."""
_ROOM: Final = 1 << 16
"""Bytes that are left of a file system that is full, at most."""
_NOT_FOUND: Final = 127
"""The status of a shell for a command that it does not find."""


def list_folder(job: SlurmJob) -> set[str]:
    """Return the names of the files in the folder of a job.

    NFS may say for a minute that a file is not there that another machine has written
    (`acdirmax` in nfs(5)), but not after this machine has changed the folder: so its
    modification time is updated first.
    """
    try:
        os.utime(job.folder)
        return {*os.listdir(job.folder)}
    except OSError:  # it is not there yet
        return set()


def file_of(job: SlurmJob, node: str, suffix: str) -> Path:
    """Return a file of a node, such as worker-0.log."""
    return job.folder / f"{NodeId(node).stem}.{suffix}"


def read_end(job: SlurmJob, node: str) -> NodeEnded | None:
    """Return how a node has ended, once node.sh has written it."""
    try:
        text = file_of(job, node, "ended").read_text(errors="replace")[:80]
    except OSError:
        return None
    status, _, host = text.strip().partition(" ")
    number = status_of_shell(int(status)) if status.isdecimal() else None
    return NodeEnded(node, number, _advice(job, node, number), host)


def _advice(job: SlurmJob, node: str, status: int | None) -> str:
    """Return what to do about the end of a node, if its log says it."""
    is_missing = status == _NOT_FOUND
    if status == 1 and not file_of(job, node, "jsonl").exists():  # it has not begun
        is_missing = "No module named" in read_log(file_of(job, node, "log"))
    if is_missing:
        return "--option python=PATH names the Python with placer on its machine"
    return ""


def read_log(path: Path) -> str:
    """Return the end of a log; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def why_unwritten(job: SlurmJob) -> str:
    """Return why nodes could not write what they have to write in the folder of a job;
    empty if nothing says that they could not."""
    folder, names = job.folder, list_folder(job)
    with suppress(OSError):
        system = os.statvfs(folder)
        if system.f_bavail * system.f_frsize < _ROOM:
            return f"the file system of '{folder}' is full"
    if not names:
        return f"nothing was written in '{folder}': do its machines share that?"
    if any(name.endswith(".new") for name in names):  # see node.sh
        return f"its machines cannot write in '{folder}': is your quota used up?"
    return ""
