"""Divides the cores of a machine among many processes of a run.

If a machine has several times more processes than cores, the operating system keeps moving
processes and their threads between cores. Pinning each process to one core avoids this cost.
The number of XLA's threads does not change, because the bits of sums depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from placer.channel.endpoint import parse_endpoint
from placer.plan.plan import Plan

MANY: Final = 4
"""The smallest number of processes per core for pinning. With fewer processes, another busy
program on a core would delay the processes on that core too much."""
UNEVEN: Final = 1.1
"""The largest FLOPs of a core, relative to the mean of all cores."""


def take_core(plan: Plan, process: str, addresses: Mapping[str, str]) -> None:
    """Pin this process to one core, if the machine has many processes of similar load.

    Call this after the number of threads is fixed and before JAX starts. Processes with the
    same host in their addresses run on one machine.

    Args:
        plan: the plan of the run.
        process: the name of this process.
        addresses: the address of each process.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    host = parse_endpoint(process, addresses[process])[0]
    flops = {
        name: sum(node.flops for node in nodes)
        for name, nodes in plan.processes.items()
        if parse_endpoint(name, addresses[name])[0] == host
    }
    number = divide_cores(flops, len(cores)).get(process)
    if number is not None:
        os.sched_setaffinity(0, {cores[number]})


def divide_cores(flops: Mapping[str, int], cores: int) -> dict[str, int]:
    """Assign processes to cores in turn, in the order of decreasing FLOPs.

    Args:
        flops: the FLOPs of each process in a step.
        cores: the number of cores.

    Returns:
        The number of the core for each process. Empty if the processes are too few or
        cannot be divided evenly.
    """
    if cores < 2 or len(flops) < MANY * cores:
        return {}
    ordered = sorted(flops, key=lambda name: -flops[name])
    numbers = {name: i % cores for i, name in enumerate(ordered)}
    loads = [0] * cores
    for name, number in numbers.items():
        loads[number] += flops[name]
    if max(loads) * cores > UNEVEN * sum(loads):
        return {}
    return numbers
