"""Checks if a job fits into a Ray cluster, and finds remedies if it does not."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from placer.errors import RunError
from placer.launcher.engines.ray.files import (
    RayJobDescription,
    format_amount,
    resources_of,
    size_option,
)
from placer.report.numbers import format_count, format_size

_RESOURCES: Final = ("CPU", "GPU", "memory")
_STEP: Final = 1 << 20
"""The step of proposed amounts of memory, in bytes."""

_OTHER: Final = {
    "STRICT_PACK": "--option strategy=PACK uses several machines if necessary",
    "STRICT_SPREAD": "--option strategy=SPREAD puts several nodes on a machine if necessary",
}
"""The remedy for a strategy that is too strict."""


def check_fits(ray: Any, job: RayJobDescription) -> None:
    """Raise RunError if a job can never fit into the current cluster."""
    machines = [
        each["Resources"] for each in ray.nodes() if each["Alive"] and each["Resources"]
    ]
    asked = [resources_of(bundle) for bundle in job.nodes.values()]
    problems: list[str] = []
    helps: list[str] = []
    for name in _RESOURCES:
        for problem in _problems(name, job, machines):
            problems.append(problem)
            helps += _helps(name, job, machines)
    if job.strategy == "STRICT_SPREAD" and len(asked) > len(machines):
        problems.append(
            f"the plan needs {len(asked)} machines, but the cluster has {len(machines)}"
        )
    if problems:
        helps += [_OTHER[job.strategy]] if job.strategy in _OTHER else []
        helps.append(
            "with --option grows=true the job waits for machines of an autoscaler"
        )
        raise RunError(
            f"the Ray cluster is too small: {'; '.join(problems)}",
            hint="; ".join(helps),
        )


def no_room(ray: Any, job: RayJobDescription) -> RunError:
    """Return the error for a job that did not get its machines in time."""
    asked = [resources_of(bundle) for bundle in job.nodes.values()]
    names = [name for name in _RESOURCES if _sum(asked, name)]
    total, free = ray.cluster_resources(), ray.available_resources()
    wants = ", ".join(format_amount(name, _sum(asked, name)) for name in names)
    has = ", ".join(
        f"{format_amount(name, total.get(name, 0))} ({_free(name, free)} free)"
        for name in names
    )
    helps = ["`ray status` shows what uses the cluster"]
    helps += [_OTHER[job.strategy]] if job.strategy in _OTHER else []
    helps.append("--option timeout=SECONDS waits longer")
    return RunError(
        f"the Ray cluster had no room for the job within {job.timeout} s: the "
        f"plan needs {wants} on {len(asked)} nodes ({job.strategy}), but the "
        f"cluster has {has}",
        hint="; ".join(helps),
    )


def _problems(
    name: str, job: RayJobDescription, machines: Sequence[Mapping[str, float]]
) -> Iterator[str]:
    asked = {n: resources_of(b).get(name, 0) for n, b in job.nodes.items()}
    node = max(asked, key=asked.__getitem__)
    total, has = sum(asked.values()), _sum(machines, name)
    most = max((each.get(name, 0) for each in machines), default=0)
    if total > has:
        yield (
            f"the plan needs {format_amount(name, total)}, but the cluster has "
            f"{format_amount(name, has)}"
        )
    elif asked[node] > most:
        yield (
            f"{node} needs {format_amount(name, asked[node])}, but no machine "
            f"has more than {format_amount(name, most)}"
        )
    elif job.strategy == "STRICT_PACK" and total > most:
        yield (
            f"the plan needs {format_amount(name, total)} on one machine, but no "
            f"machine has more than {format_amount(name, most)}"
        )
    elif least := min(asked.values()):
        sizes = [each.get(name, 0) for each in machines]
        rooms = _rooms("PACK", sizes, least)
        if rooms < len(asked):
            yield (
                f"{len(asked)} nodes each need {format_amount(name, least)} or "
                f"more, but the machines have room for {rooms:.0f} of them"
            )


def _helps(
    name: str, job: RayJobDescription, machines: Sequence[Mapping[str, float]]
) -> Iterator[str]:
    if name == "GPU":
        yield "a build with fewer `devices`, or --emulate, needs fewer GPUs"
        return
    step = 1 if name == "CPU" else _STEP
    sizes = [int(each.get(name, 0)) // step for each in machines]
    fits = bisect_left(
        range(1, max(sizes, default=0) + 1),
        True,
        key=lambda amount: _rooms(job.strategy, sizes, amount) < len(job.nodes),
    )
    if not fits:
        yield f"{len(job.nodes)} nodes need more machines"
    elif name == "CPU":
        yield f"--option cpus={fits} would fit"
    else:
        yield (
            f"--option memory={size_option(fits * step)} for each node would "
            "fit, if the nodes need no more"
        )


def _rooms(strategy: str, sizes: Sequence[float], amount: float) -> float:
    """Return how many nodes that need `amount` of a resource fit on the machines."""
    match strategy:
        case "STRICT_PACK":
            return max((size // amount for size in sizes), default=0)
        case "STRICT_SPREAD":
            return sum(size >= amount for size in sizes)
    return sum(size // amount for size in sizes)


def _sum(each: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(resources.get(name, 0) for resources in each)


def _free(name: str, free: Mapping[str, float]) -> str:
    number = free.get(name, 0)
    return format_size(number) if name == "memory" else format_count(number)
