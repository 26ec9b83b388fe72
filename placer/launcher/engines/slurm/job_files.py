"""Reads the files that the nodes of a Slurm job write in its folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from placer.launcher.engines.engine import NodeEnded
from placer.launcher.engines.hints import hint_of
from placer.launcher.engines.said import end_of_file
from placer.launcher.engines.slurm.job import SlurmJob
from placer.launcher.other_python import REMOVE_OTHER, has_other_program
from placer.place.node_kinds import NodeId
from placer.runtime.signals.signals import status_of_shell

_ROOM: Final = 1 << 16
"""The largest free space, in bytes, of a file system that counts as full."""


def list_folder(job: SlurmJob) -> set[str]:
    """Return the names of the files in the folder of a job.

    For up to a minute, NFS may hide files that another machine has written (`acdirmax` in
    nfs(5)). It shows them after this machine has changed the folder, so this function
    first updates the modification time of the folder.
    """
    try:
        os.utime(job.folder)
        return {*os.listdir(job.folder)}
    except OSError:  # The folder does not exist yet.
        return set()


def find_later_start(job: SlurmJob) -> SlurmJob | None:
    """Return the job at its last start, if Slurm has started it again after `job.start`."""
    above, prefix = job.folder.parent, f"job-{job.number}-"
    try:
        os.utime(above)  # see list_folder
        names = os.listdir(above)
    except OSError:
        return None
    counts = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    last = max((int(each) for each in counts if each.isdecimal()), default=0)
    return job.at_start(last) if last > job.start else None


def file_of(job: SlurmJob, node: str, suffix: str) -> Path:
    """Return the path of a node's file, such as worker-0.log."""
    return job.folder / f"{NodeId(node).stem}.{suffix}"


def read_end(job: SlurmJob, node: str) -> NodeEnded | None:
    """Return how a node ended, once node.sh has written it; None before."""
    try:
        text = file_of(job, node, "ended").read_text(errors="replace")[:80]
    except OSError:
        return None
    status, _, host = text.strip().partition(" ")
    number = status_of_shell(int(status)) if status.isdecimal() else None
    hint = None
    if number in (1, 127) and not file_of(job, node, "jsonl").exists():  # not begun
        log = end_of_file(file_of(job, node, "log"))
        if has_other_program(log):
            hint = REMOVE_OTHER
        else:
            hint = hint_of("node.sh", f"status {number}\n{log}")
    return NodeEnded(node, number, hint or "", host)


def why_unwritten(job: SlurmJob) -> str:
    """Return the probable reason why nodes could not write to the folder of a job, or ""."""
    folder, names = job.folder, list_folder(job)
    with suppress(OSError):
        system = os.statvfs(folder)
        if system.f_bavail * system.f_frsize < _ROOM:
            return f"the file system of '{folder}' is full"
    if not names:
        return (
            f"nothing was written in '{folder}': is it shared with the machines of "
            "the job?"
        )
    if any(name.endswith(".new") for name in names):  # see node.sh
        return f"its machines cannot write in '{folder}': is your quota used up?"
    return ""
