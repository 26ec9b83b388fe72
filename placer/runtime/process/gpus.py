"""Divides the GPUs of a machine among the processes of a run.

By default, JAX in each process would use the first GPUs and reserve three quarters of their
memory. The first process would leave too little memory for the others. Here each process
receives separate GPUs if the machine has enough, otherwise a share of their memory. The
first GPU of a process is its `gpu:0`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from placer.channel.endpoint import parse_endpoint
from placer.plan.plan import NodePlan, Plan

GPU: Final = "gpu"
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
"""CUDA's environment variable with the GPUs that a process can use."""
FRACTION: Final = "XLA_CLIENT_MEM_FRACTION"
"""XLA's environment variable with the fraction of GPU memory that JAX reserves."""
WHOLE_FRACTION: Final = 0.75
"""The fraction of GPU memory that JAX reserves by default. The rest is for libraries and for
the CUDA context of each process, which needs half a gigabyte."""
_MEMORY: Final = (
    FRACTION,
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)
"""Environment variables with which users configure GPU memory."""
_DEVICES: Final = Path("/dev")


@dataclass(frozen=True, slots=True)
class Share:
    """The GPUs of one process.

    Attributes:
        gpus: the names of the GPUs, as in `VISIBLE`.
        processes: the number of processes on the most crowded of these GPUs.
    """

    gpus: tuple[str, ...]
    processes: int


def take_gpus(
    plan: Plan, process: str, addresses: Mapping[str, str], *, launched: bool
) -> None:
    """Set environment variables so that JAX uses only this process's share of GPUs.

    Call this before JAX starts. Nothing changes if no other process on this machine uses
    GPUs. Processes with the same host in their addresses run on one machine. Memory settings
    of the user are kept. In a process started by hand, so is the user's choice of GPUs.

    Args:
        plan: the plan of the run.
        process: the name of this process.
        addresses: the address of each process.
        launched: whether a launcher has started all processes, with one environment.
    """
    if VISIBLE in os.environ and not launched:
        return
    host = _host(process, addresses)
    needs = {
        name: count_gpus(nodes)
        for name, nodes in plan.processes.items()
        if _host(name, addresses) == host
    }
    share = divide_gpus(needs, visible_gpus()).get(process)
    if share is None:
        return
    os.environ[VISIBLE] = ",".join(share.gpus)
    if share.processes > 1 and not any(name in os.environ for name in _MEMORY):
        os.environ[FRACTION] = f"{WHOLE_FRACTION / share.processes:.4f}"


def divide_gpus(needs: Mapping[str, int], gpus: Sequence[str]) -> dict[str, Share]:
    """Divide the GPUs of a machine among its processes, in turn.

    Args:
        needs: the number of GPUs that each process uses.
        gpus: the names of the machine's GPUs.

    Returns:
        The share of each process that uses GPUs. Empty if fewer than two processes use
        GPUs, or if a process needs more GPUs than the machine has.
    """
    users = {name: count for name, count in needs.items() if count}
    if len(users) < 2 or max(users.values()) > len(gpus):
        return {}
    taken: dict[str, tuple[str, ...]] = {}
    start = 0
    for name, count in users.items():
        taken[name] = tuple(gpus[(start + i) % len(gpus)] for i in range(count))
        start += count
    users_of = Counter(gpu for mine in taken.values() for gpu in mine)
    return {
        name: Share(mine, max(users_of[gpu] for gpu in mine))
        for name, mine in taken.items()
    }


def count_gpus(nodes: Iterable[NodePlan]) -> int:
    """Return the number of GPUs that the nodes of a process use; nodes share GPUs."""
    numbers = [
        int(device.removeprefix(GPU + ":"))
        for node in nodes
        for devices in node.computes.values()
        for device in devices
        if device.startswith(GPU + ":")
    ]
    return 1 + max(numbers, default=-1)


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process can use, as in `VISIBLE`.

    Without this environment variable, these are all GPUs with a device file of NVIDIA's
    driver.
    """
    listed = os.environ.get(VISIBLE)
    if listed is not None:
        names = [name.strip() for name in listed.split(",")]
        # CUDA ignores all names after an invalid name such as -1.
        end = next((i for i, n in enumerate(names) if n in ("", "-1")), len(names))
        return names[:end]
    files = [each.name for each in _DEVICES.glob("nvidia[0-9]*")]
    count = sum(name.removeprefix("nvidia").isdecimal() for name in files)
    return [str(number) for number in range(count)]


def _host(process: str, addresses: Mapping[str, str]) -> str:
    return parse_endpoint(process, addresses[process])[0]
