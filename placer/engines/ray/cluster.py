"""A Ray cluster: the connection to it, whether a job fits into it, what its errors say."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from placer.channel.endpoint import parse_endpoint
from placer.engines.ray.files import (
    RayJobDescription,
    format_amount,
    resources_of,
)
from placer.errors import RunError
from placer.report.numbers import format_count, format_size

CONNECT_TIMEOUT: Final = 10.0
"""Seconds in which the cluster has to accept a connection."""
_REASONS: Final = (
    (
        r"The actor (?:is dead|died) because (.*?)\.(?: |$)",
        r"exit detail: (.*?)(?:\. Some common|\.? Ray|\.?$)",
    ),
    (r"The (actor is temporarily unavailable: .*?)\.?(?: rpc_code| The task|$)",),
)
"""What is quoted of Ray's errors: the first of these in which there is anything."""
_RESOURCES: Final = ("CPU", "GPU", "memory")


def connect(ray: Any, address: str) -> None:
    """Connect this process to a cluster.

    Raises RunError if there is no cluster, or another version of Ray or Python.
    """
    given = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    _check_reachable(given)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise RunError(
            f"cannot connect to the Ray cluster '{given or address}': {one_line(error)}",
            hint="`ray status` shows whether this machine belongs to a cluster;"
            " --option address=HOST:PORT names another one",
        ) from None


def _check_reachable(address: str) -> None:
    """Raise RunError if nothing listens at HOST:PORT, for which Ray looks for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return  # `auto`, or another form, which Ray checks
    try:
        socket.create_connection(
            parse_endpoint("Ray", address), timeout=CONNECT_TIMEOUT
        ).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise RunError(
            f"there is no Ray cluster at {address}: {why}",
            hint="`ray start --head` prints its address",
        ) from None


def check_fits(ray: Any, job: RayJobDescription) -> None:
    """Raise RunError if a job can never fit into the cluster as it is."""
    machines = [
        each["Resources"] for each in ray.nodes() if each["Alive"] and each["Resources"]
    ]
    asked = [resources_of(bundle) for bundle in job.nodes.values()]
    problems = []
    for name in _RESOURCES:
        total, has = _sum(asked, name), _sum(machines, name)
        most = max((each.get(name, 0) for each in machines), default=0)
        node, needs = max(
            zip(job.nodes, (each.get(name, 0) for each in asked), strict=True),
            key=lambda pair: pair[1],
        )
        if total > has:
            problems.append(
                f"the plan asks for {format_amount(name, total)}, and the cluster has"
                f" {format_amount(name, has)}"
            )
        elif needs > most:
            problems.append(
                f"{node} asks for {format_amount(name, needs)}, and no machine has more than"
                f" {format_amount(name, most)}"
            )
        elif job.strategy == "STRICT_PACK" and total > most:
            problems.append(
                f"the plan asks for {format_amount(name, total)} on one machine, and none has"
                f" more than {format_amount(name, most)}"
            )
    if job.strategy == "STRICT_SPREAD" and len(asked) > len(machines):
        problems.append(
            f"the plan asks for {len(asked)} machines, and the cluster has"
            f" {len(machines)}"
        )
    if problems:
        raise RunError(
            f"the Ray cluster is too small: {'; '.join(problems)}",
            hint="with --option grows=true the job waits for more machines, as an"
            " autoscaler adds them",
        )


def no_room(ray: Any, job: RayJobDescription) -> RunError:
    """Return the error for a job that has not got its machines in time."""
    asked = [resources_of(bundle) for bundle in job.nodes.values()]
    names = [name for name in _RESOURCES if _sum(asked, name)]
    total, free = ray.cluster_resources(), ray.available_resources()
    wants = ", ".join(format_amount(name, _sum(asked, name)) for name in names)
    has = ", ".join(
        f"{format_amount(name, total.get(name, 0))} ({_free(name, free)} free)"
        for name in names
    )
    return RunError(
        f"the Ray cluster has had no room for the job within {job.timeout} s: the plan"
        f" asks for {wants} on {len(asked)} nodes ({job.strategy}), and the cluster has"
        f" {has}",
        hint="`ray status` shows what uses the cluster; --option timeout=SECONDS waits"
        " longer",
    )


def _sum(each: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(resources.get(name, 0) for resources in each)


def _free(name: str, free: Mapping[str, float]) -> str:
    number = free.get(name, 0)
    return format_size(number) if name == "memory" else format_count(number)


def one_line(error: BaseException) -> str:
    """Return what an error of Ray says, as one line without its details."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:400] if lines else type(error).__name__


def reason(error: BaseException) -> str:
    """Return why an actor has died, as one line, from what Ray says at length."""
    text = " ".join(str(error).split())
    for pattern in _REASONS:
        if found := [each[1] for part in pattern if (each := re.search(part, text))]:
            return f"Ray says: {': '.join(found)}"
    return f"Ray says: {text[:400]}"
