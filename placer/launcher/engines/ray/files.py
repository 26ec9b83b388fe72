"""The files of a job on Ray, and the description for its driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec

from placer.errors import BuildError
from placer.launcher.engines.engine import JobFile, JobFiles, JobRequest
from placer.place.ids import format_nodes
from placer.plan.folder import read_file
from placer.plan.plan import FILE, SOURCES, read_plan
from placer.report.numbers import format_count, format_size

RUN: Final = "run.py"
BUILD: Final = "build"
_UNITS: Final = ((30, "GiB"), (20, "MiB"), (10, "KiB"))
"""Units for `--option memory`. A size uses the first unit that divides it, or else the
last one."""

_SCRIPT: Final = '''\
"""{name} on a Ray cluster: {nodes}. Written by placer.

On a machine of the cluster:      python run.py
From elsewhere, in this folder:   ray job submit --working-dir . -- python run.py

The nodes need:
{bundles}
"""

import os
from pathlib import Path

from placer.command import main

folder = Path(__file__).resolve().parent
# `ray job submit` copies the folder to a place where other users may be able to write.
# Anyone who can change the build there can also change this script.
os.environ["PLACER_TRUST"] = f"{{folder}}:{{os.environ.get('PLACER_TRUST', '')}}"
main(
    [
        "launch",
        str(folder / "build"),
{arguments}
    ]
)
'''


class Bundle(msgspec.Struct, frozen=True):
    """The resources that a node requests; `memory` is in bytes."""

    cpus: int
    gpus: int
    memory: int


class RayJobDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The description of a job for its driver.

    Attributes:
        name: the name of the job.
        digest: the digest of the plan.
        address: the address of the cluster.
        strategy: the placement strategy of the placement group.
        timeout: the seconds within which the nodes must get their machines.
        grows: True if the cluster may add machines for the job.
        nodes: the resources of each node by its name; the first is the control node.
        arguments: the arguments of `placer run` after the build and the node.
        secret: the secret of the run's key.
        restarts: the value of `--restarts`.
        join_timeout: the seconds in which Ray must start a lost actor again.
    """

    name: str
    digest: str
    address: str
    strategy: str
    timeout: int
    grows: bool
    nodes: dict[str, Bundle]
    arguments: list[str]
    secret: bytes
    restarts: int = 0
    join_timeout: float = 600.0

    def __repr__(self) -> str:
        return f"<Ray job {self.name}>"  # must not show the secret


def describe_job(request: JobRequest, options: Mapping[str, Any]) -> RayJobDescription:
    """Return the description of a job for its driver."""
    run_id = [f"--run-id={request.run_id}"] if request.run_id else []
    return RayJobDescription(
        name=request.name,
        digest=request.plan.digest,
        address=options["address"],
        strategy=options["strategy"],
        timeout=options["timeout"],
        grows=options["grows"],
        nodes={
            node: Bundle(options["cpus"], needs.gpus, options["memory"] or needs.memory)
            for node, needs in request.needs.items()
        },
        arguments=[*_arguments(request), *run_id],
        secret=request.key.secret,
        restarts=request.restarts,
        join_timeout=request.join_timeout,
    )


def job_files(request: JobRequest, options: Mapping[str, Any]) -> JobFiles:
    """Return the files of a job: the build, and `run.py`, which launches it."""
    given = [f"{name}={_text(name, value)}" for name, value in options.items() if value]
    arguments = ["--on=ray", *(f"--option={each}" for each in given)]
    arguments += _arguments(request)
    nodes = describe_job(request, options).nodes
    script = _SCRIPT.format(
        name=request.name,
        nodes=format_nodes(nodes),
        bundles="\n".join(_bundle_lines(nodes)),
        arguments="\n".join(f"        {json.dumps(each)}," for each in arguments),
    )
    return {
        RUN: JobFile(script, submits=True),
        **{f"{BUILD}/{path}": JobFile(data) for path, data in request.files.items()},
    }


def _arguments(request: JobRequest) -> list[str]:
    data = [] if request.data is None else [f"--data={request.data}"]
    return [*request.arguments, *data]


def _text(name: str, value: Any) -> str:
    if name == "memory":
        return size_option(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def size_option(value: int) -> str:
    """Return a number of bytes as text for the option `memory`."""
    multiples = (each for each in _UNITS if value % (1 << each[0]) == 0)
    shift, unit = next(multiples, _UNITS[-1])
    return f"{-(-value >> shift)}{unit}"


def _bundle_lines(nodes: Mapping[str, Bundle]) -> list[str]:
    groups = [
        (format_nodes([*names]), bundle)
        for bundle, names in groupby(nodes, nodes.__getitem__)
    ]
    width = max(len(names) for names, _ in groups)
    return [
        f"    {names:<{width}}  "
        + ", ".join(format_amount(*each) for each in resources_of(bundle).items())
        for names, bundle in groups
    ]


def resources_of(bundle: Bundle) -> dict[str, float]:
    """Return the resources of a bundle, by Ray's names."""
    asked = {"CPU": bundle.cpus, "GPU": bundle.gpus, "memory": bundle.memory}
    return {name: amount for name, amount in asked.items() if amount}


def format_amount(resource: str, amount: float) -> str:
    """Return an amount of a resource of Ray, such as `2 GPUs`."""
    if resource == "memory":
        return f"{format_size(amount)} of memory"
    return f"{format_count(amount)} {resource}{'s' if amount != 1 else ''}"


def read_build(folder: Path, digest: str) -> dict[str, bytes]:
    """Return the content of each file of the build in the folder of a job. Raises
    BuildError if the build was edited or has another digest."""
    build = folder / BUILD
    plan = read_plan(build)
    if plan.digest != digest:
        raise BuildError(f"'{build}' is not the build of this job")
    files = {name: read_file(build, name) for name in (SOURCES, FILE)}
    for name, of_file in plan.files.items():
        files[name] = read_file(build, name, of_file)
    return files
