"""The files of a job on Ray: `job.json`, `run.py` and the build."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from placer.build.folder import read_file
from placer.build.plan import FILE, SOURCES, read_plan
from placer.engines.engine import JobFile, JobFiles
from placer.errors import PlacerError

JOB: Final = "job.json"
RUN: Final = "run.py"
BUILD: Final = "build"

_SCRIPT: Final = '''\
"""Runs the job that job.json describes on a Ray cluster. Written by placer.

On a machine of the cluster:        python run.py
From elsewhere, in this folder:     ray job submit --working-dir . -- python run.py
The job ends with this script.
"""

from pathlib import Path

from placer.launcher.written_job import run_written_job

if __name__ == "__main__":
    run_written_job("ray", Path(__file__).parent)
'''


class Bundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node asks of a machine: `memory` is in bytes."""

    cpus: int
    gpus: int
    memory: int


class RayJobDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `job.json`: all of a job but its build and its key.

    Attributes:
        name: the name of the job.
        digest: that of the plan in `build`.
        address: the address of the cluster.
        strategy: how Ray chooses the machines for the bundles of the placement group.
        timeout: the seconds in which the nodes get their machines.
        grows: whether the cluster may get more machines for the job.
        nodes: the bundle of each node by its name; the first is the control node.
        arguments: the arguments of `placer run` after the build and the node.
        data: the folder of the data on the machines; None for their PLACER_DATA.
        saves: whether the run saves something when it is interrupted.
        grace: the seconds that nodes have to stop and save after an interruption.
    """

    name: str
    digest: str
    address: str
    strategy: str
    timeout: int
    grows: bool
    nodes: dict[str, Bundle]
    arguments: list[str]
    data: str | None
    saves: bool
    grace: float


def job_files(job: RayJobDescription, build: dict[str, bytes]) -> JobFiles:
    """Return the files of a job; `build` has those of its build."""
    text = msgspec.json.format(msgspec.json.encode(job), indent=2).decode() + "\n"
    return {
        JOB: JobFile(text),
        RUN: JobFile(_SCRIPT),
        **{f"{BUILD}/{path}": JobFile(data) for path, data in build.items()},
    }


def read_job(folder: Path) -> tuple[RayJobDescription, dict[str, bytes]]:
    """Return a job and the files of its build.

    Raises PlacerError for files that are not those of a job, BuildError for a build that
    was edited.
    """
    path = folder / JOB
    try:
        job = msgspec.json.decode(path.read_bytes(), type=RayJobDescription)
    except OSError as error:
        raise PlacerError(f"cannot read '{path}': {error.strerror}") from None
    except ValueError as error:
        raise PlacerError(f"'{path}' does not describe a job: {error}") from None
    build = folder / BUILD
    plan = read_plan(build)
    if plan.digest != job.digest:
        raise PlacerError(f"'{build}' is another build than '{path}' names")
    if [*job.nodes] != [*plan.processes]:
        raise PlacerError(
            f"'{path}' has the nodes {', '.join(job.nodes)}, and the build"
            f" {', '.join(plan.processes)}"
        )
    names = (SOURCES, FILE)
    files = {name: read_file(build, name) for name in names}
    for name, digest in plan.files.items():
        files[name] = read_file(build, name, digest)
    return job, files
