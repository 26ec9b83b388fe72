"""What the nodes of a job of Slurm have written in its folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from placer.launcher.engines.engine import NodeEnded
from placer.launcher.engines.hints import hint_of
from placer.launcher.engines.said import end_of_file
from placer.launcher.engines.slurm.job import SlurmJob
from placer.place.node_kinds import NodeId
from placer.runtime.signals.signals import status_of_shell

_ROOM: Final = 1 << 16
"""Bytes that are left of a file system that is full, at most."""


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
    hint = None
    if number in (1, 127) and not file_of(job, node, "jsonl").exists():  # not begun
        log = end_of_file(file_of(job, node, "log"))
        hint = hint_of("node.sh", f"status {number}\n{log}")
    return NodeEnded(node, number, hint or "", host)


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
