"""The options of Slurm, and the submission of jobs."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from placer.errors import PlacerError, RunError
from placer.launcher.engines.engine import EngineOption, JobRequest
from placer.launcher.engines.slurm.commands import run
from placer.launcher.engines.slurm.job import SlurmJob
from placer.launcher.engines.slurm.sbatch_options import set_options

OPTIONS: Final = (
    EngineOption("partition", "str", None, "The partition of the job."),
    EngineOption("time", "str", None, "The time limit of the job, such as 1-12:00:00."),
    EngineOption("account", "str", None, "The account to charge for the job."),
    EngineOption("cpus", "int", 2, "The number of CPUs of each node."),
    EngineOption(
        "memory",
        "size",
        None,
        "The memory of each node, such as 8GiB. Default: the needs of the plan.",
    ),
    EngineOption(
        "port", "int", None, "The port of the first node. Default: a port for each job."
    ),
    EngineOption(
        "python", "str", None, "The path of a Python with placer. Default: this Python."
    ),
    EngineOption(
        "setup", "str", None, "A shell command to run on each node before placer."
    ),
    EngineOption(
        "sbatch", "str", None, "More options of sbatch, for each group of the job."
    ),
)


def submit(folder: Path, request: JobRequest, options: Mapping[str, Any]) -> SlurmJob:
    """Submit the job in a folder; see `Engine.submit`."""
    _check_files(request, options)
    set_by = [name for name in ("account", "partition", "time") if options[name]]
    set_by += set_options(options["sbatch"] or "")
    command = ["sbatch", "--parsable", "job.sh", digest_of(folder)]
    answer = run(command, folder, set_by=set_by)
    found = re.search(r"^([0-9]+)(?:;(\S+))?\s*\Z", answer, re.MULTILINE)
    if found is None:
        raise RunError(f"sbatch did not print the number of the job: {answer!r}")
    number, cluster = found[1], found[2] or ""
    nodes = tuple(request.needs)
    path, restarts = folder / f"job-{number}", request.restarts > 0
    job = SlurmJob(number, path, nodes, cluster, restarts)
    _create_folder(job)
    return job


def digest_of(folder: Path) -> str:
    """Return the digest of a job's program, to be checked by job.sh. While the job
    waits, another job could replace its files."""
    files = (folder / "build/plan.json", folder / "node.sh")
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _create_folder(job: SlurmJob) -> None:
    """Create the folder for which the batch script waits, or cancel the job."""
    try:
        job.folder.mkdir()
    except OSError as error:
        why, hint = f"cannot create the folder '{job.folder}': {error.strerror}", None
        if isinstance(error, FileExistsError):
            why = f"'{job.folder}' already exists for another job with this number"
            hint = "choose another folder with --logs DIR"
        try:
            job.cancel()
        except RunError:
            hint = f"end the job with: {job.cancel_command}"
        raise RunError(why, hint=hint) from None


def _check_files(request: JobRequest, options: Mapping[str, Any]) -> None:
    """Raise PlacerError for missing files, before the job waits for hours."""
    python = options["python"] or sys.executable
    if not options["setup"] and shutil.which(python) is None:
        raise PlacerError(
            f"there is no Python '{python}' on this machine",
            hint="the machines of Slurm share their files; set the path with "
            "--option python=PATH",
        )
    folders = {flag: path.parent for flag, path in request.writes.items()}
    if request.data is not None:
        folders["--data"] = request.data
    for flag, folder in folders.items():
        if not folder.is_dir():
            raise _missing(f"folder '{folder}'", flag)
    for flag, path in request.reads.items():
        if not path.exists():  # The path is a file, or the folder of a checkpoint.
            raise _missing(f"file '{path}'", flag)
    resumed, own = (request.folders.get(each) for each in ("--resume", "--checkpoint"))
    # The first start of a run may resume from its own folder, which has no checkpoint
    # yet.
    if resumed not in (None, own) and not resumed.is_dir():
        raise _missing(f"folder '{resumed}'", "--resume")
    for flag, path in request.folders.items():  # The run itself creates these folders.
        above = [each for each in path.parents if each.name]  # all parents except /
        if above and not any(each.is_dir() for each in above):
            raise _missing(f"folder '{path.parent}'", flag)


def _missing(what: str, flag: str) -> PlacerError:
    return PlacerError(
        f"there is no {what} for {flag} on this machine",
        hint="the machines of Slurm share their files",
    )
