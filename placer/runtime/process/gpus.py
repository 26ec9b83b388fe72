"""The GPUs of a machine, divided among the processes of a run that are on it.

In each process, JAX would take the first GPUs of the machine, and three quarters of the
memory of each at once: of several processes, the first would leave too little to the
others. Here each process has GPUs of its own if there are enough, and else a part of
their memory. Its first GPU is its `gpu:0`.
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
"""The environment variable with the GPUs that a process can use, as CUDA reads it."""
FRACTION: Final = "XLA_CLIENT_MEM_FRACTION"
"""That with the part of a GPU's memory that JAX takes, as XLA reads it."""
WHOLE_FRACTION: Final = 0.75
"""The part that JAX takes by default. The rest is for what does not come from its pool:
the context of CUDA in each process, half a gigabyte, and libraries."""
_MEMORY: Final = (
    FRACTION,
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)
"""The variables by which users decide about the memory themselves."""
_DEVICES: Final = Path("/dev")


@dataclass(frozen=True, slots=True)
class Share:
    """The GPUs of one process, by their names in `VISIBLE`, and how many processes have
    the one of them that most have."""

    gpus: tuple[str, ...]
    processes: int


def take_gpus(
    plan: Plan, process: str, addresses: Mapping[str, str], *, launched: bool
) -> None:
    """Set the environment of this process so that JAX uses its share of GPUs.

    Call it before JAX starts. It changes nothing if no other process of this machine
    uses GPUs; processes with the same host in their addresses are on one machine. What
    the user has set about memory stays, and of a process that was started by hand also
    which GPUs it has.

    Args:
        plan: the plan of the run.
        process: the name of this process.
        addresses: the address of each process.
        launched: whether a launcher has started this process and the others, in one
            environment.
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
    """Divide the GPUs of a machine among the processes on it.

    Each process gets the next ones; after the last GPU comes the first one again.

    Args:
        needs: how many GPUs each process uses.
        gpus: the names of the GPUs of the machine.

    Returns:
        The share of each process that uses GPUs. It is empty if there is nothing to
        divide: fewer than two processes use GPUs, or one uses more than there are.
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
    """Return how many GPUs the nodes of a process use, which share them: as many as the
    highest number among them needs."""
    numbers = [
        int(device.removeprefix(GPU + ":"))
        for node in nodes
        for devices in node.computes.values()
        for device in devices
        if device.startswith(GPU + ":")
    ]
    return 1 + max(numbers, default=-1)


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process can use, as in `VISIBLE`: those of
    NVIDIA's driver that have a device file, unless the variable lists some."""
    listed = os.environ.get(VISIBLE)
    if listed is not None:
        names = [name.strip() for name in listed.split(",")]
        # CUDA ignores what comes after an invalid name, such as -1.
        end = next((i for i, n in enumerate(names) if n in ("", "-1")), len(names))
        return names[:end]
    files = [each.name for each in _DEVICES.glob("nvidia[0-9]*")]
    count = sum(name.removeprefix("nvidia").isdecimal() for name in files)
    return [str(number) for number in range(count)]


def _host(process: str, addresses: Mapping[str, str]) -> str:
    return parse_endpoint(process, addresses[process])[0]
