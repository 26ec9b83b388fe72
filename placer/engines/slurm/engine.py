"""The options of Slurm, and how a job is submitted to it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from placer.engines.engine import (
    EngineOption,
    JobRequest,
)
from placer.engines.slurm.job import SlurmJob, run
from placer.errors import PlacerError, RunError

OPTIONS: Final = (
    EngineOption("partition", "str", None, "The partition of the job."),
    EngineOption("time", "str", None, "The limit of its time, such as 1-12:00:00."),
    EngineOption("account", "str", None, "The account that it is charged to."),
    EngineOption("cpus", "int", 2, "The CPUs of each node."),
    EngineOption("memory", "size", None, "The memory of each node, not the plan's."),
    EngineOption("port", "int", None, "The port of the first node, not the job's own."),
    EngineOption(
        "python", "str", None, "The Python that has placer; default: this one."
    ),
    EngineOption("setup", "str", None, "A shell command for each node before placer."),
    EngineOption("sbatch", "str", None, "More options of sbatch for each group."),
)


def submit(folder: Path, request: JobRequest, options: Mapping[str, Any]) -> SlurmJob:
    """Submit the job in a folder; see `Engine.submit`."""
    _check_files(request, options)
    answer = run(["sbatch", "--parsable", "job.sh"], folder)
    number = answer.strip().partition(";")[0]
    if not number.isdecimal():
        raise RunError(f"sbatch has not told the number of the job: {answer!r}")
    return SlurmJob(number, folder / f"job-{number}", tuple(request.needs))


def _check_files(request: JobRequest, options: Mapping[str, Any]) -> None:
    """Raise PlacerError if something is missing, before the job waits for hours."""
    python = options["python"] or sys.executable
    if not options["setup"] and shutil.which(python) is None:
        raise PlacerError(
            f"there is no Python '{python}' on this machine",
            hint="machines of Slurm share their files; --option python=PATH names it",
        )
    folders = {flag: path.parent for flag, path in request.writes.items()}
    if request.data is not None:
        folders["--data"] = request.data
    for flag, folder in folders.items():
        if not folder.is_dir():
            raise _missing(f"folder '{folder}'", flag)
    for flag, path in request.reads.items():
        if not path.exists():  # or a folder, of a checkpoint
            raise _missing(f"file '{path}'", flag)


def _missing(what: str, flag: str) -> PlacerError:
    return PlacerError(
        f"there is no {what} for {flag} on this machine",
        hint="machines of Slurm share their files",
    )
