"""The cores of a machine, divided among the many processes of a run that are on it.

Where there are several times as many processes as cores, the system moves each from core to
core, and its threads to different ones. A process that keeps to one core does the same with
less. The number of XLA's threads stays as it is, because sums depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from placer.channel.endpoint import parse_endpoint
from placer.plan.plan import Plan

MANY: Final = 4
"""The number of processes for each core from which they are divided: with fewer, another
program that keeps a core busy would delay those on it much."""
UNEVEN: Final = 1.1
"""How many FLOPs the core with the most may have, relative to the mean."""


def take_core(plan: Plan, process: str, addresses: Mapping[str, str]) -> None:
    """Keep this process to one core, if the processes of this machine are many and can be
    divided evenly.

    Call it after the number of threads is fixed, and before JAX starts. Processes with the
    same host in their addresses are on one machine.

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
    """Deal processes to cores, those that compute most first.

    Args:
        flops: what each process computes in a step.
        cores: how many cores there are.

    Returns:
        The number of the core of each process. It is empty if there is nothing to divide:
        there are too few processes, or one core would have more to do than others.
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
