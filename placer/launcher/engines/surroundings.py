"""Finds the node of a process and the addresses of its peers from its environment.

`placer run BUILD --node auto` uses the first of these that is set:

- `PLACER_NODE`, such as `worker:0`;
- `PLACER_KIND` and `PLACER_INDEX`, such as `worker` and `0`;
- Slurm's variables for the tasks of a step: task i is the i-th process of the plan.

The addresses are in `PLACER_ENDPOINTS`. With Slurm, they follow from its lists of hosts
and of tasks per host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from placer.errors import PlacerError, did_you_mean
from placer.launcher.engines.host_lists import expand_hosts, expand_tasks
from placer.place.ids import node_hint
from placer.place.node_kinds import NodeId
from placer.plan.plan import BASE_PORT
from placer.report.numbers import plural

NODE: Final = "PLACER_NODE"
KIND: Final = "PLACER_KIND"
INDEX: Final = "PLACER_INDEX"
ADDRESSES: Final = "PLACER_SLURM_ADDRESSES"
"""The variable `NAME=ADDRESS,…` with addresses of Slurm's nodes that differ from their
names."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The node of a process, and the known addresses of nodes."""

    node: str
    endpoints: dict[str, str] = field(default_factory=dict)


def look_around(
    processes: Sequence[str],
    environment: Mapping[str, str],
    base_port: int | None = None,
) -> Surroundings:
    """Return the node of this process, and the addresses that its environment contains.

    Args:
        processes: the names of all processes of the plan, in its order.
        environment: the environment of this process.
        base_port: the port of the first process, for addresses that follow from the
            hosts.

    Raises:
        PlacerError: if the environment does not name a node, or does not fit the plan.
    """
    if NODE in environment:
        return Surroundings(_known(processes, environment[NODE], NODE))
    if KIND in environment or INDEX in environment:
        return Surroundings(_numbered(processes, environment))
    if "SLURM_PROCID" in environment:
        return _of_slurm(processes, environment, base_port)
    if "SLURM_JOB_ID" in environment:
        raise PlacerError(
            "--node auto: this is a batch script of Slurm, not one of its tasks",
            hint="start the nodes with srun",
        )
    raise PlacerError(
        f"--node auto: {NODE}, {KIND} with {INDEX}, and Slurm's variables are not set",
        hint=f"name the node with --node: one of {', '.join(processes)}",
    )


def _known(processes: Sequence[str], node: str, variable: str) -> str:
    if node not in processes:
        raise PlacerError(
            f"{variable} is '{node}', but this build has no such node",
            hint=node_hint(node, processes),
        )
    return node


def _numbered(processes: Sequence[str], environment: Mapping[str, str]) -> str:
    kind, index = environment.get(KIND, ""), environment.get(INDEX, "")
    count = sum(NodeId(name).kind == kind for name in processes)
    if not count:
        kinds = {NodeId(name).kind for name in processes}
        raise PlacerError(
            f"{KIND} is '{kind}', but this build has no such nodes",
            hint=did_you_mean(kind, kinds),
        )
    if not re.fullmatch("[0-9]{1,6}", index) or int(index) >= count:
        raise PlacerError(
            f"{INDEX} is '{index}', but this build has {plural(count, 'node')} "
            f"of kind '{kind}', numbered from 0",
            hint="start the number of nodes in the build, or compile it again with "
            "another number: --nodes",
        )
    return f"{kind}:{int(index)}"


def _of_slurm(
    processes: Sequence[str], environment: Mapping[str, str], base_port: int | None
) -> Surroundings:
    tasks = list(_hosts_of_tasks(environment))
    rank = _number(environment, "SLURM_PROCID")
    if len(tasks) != len(processes):
        raise PlacerError(
            f"Slurm has started {plural(len(tasks), 'task')}, but this build has "
            f"{plural(len(processes), 'process', 'processes')}: "
            f"{', '.join(processes)}",
            hint=f"srun --ntasks={len(processes)}",
        )
    if rank >= len(tasks):
        raise PlacerError(
            f"SLURM_PROCID is {rank}, but Slurm has {plural(len(tasks), 'task')}"
        )
    here = environment.get("SLURMD_NODENAME", tasks[rank])
    if here != tasks[rank]:
        raise PlacerError(
            f"task {rank} of Slurm is on {here}, but SLURM_STEP_TASKS_PER_NODE "
            f"says {tasks[rank]}",
            hint="srun --distribution=block",
        )
    pairs = (pair.partition("=") for pair in environment.get(ADDRESSES, "").split(","))
    addresses = {name: address for name, _, address in pairs}
    first = BASE_PORT if base_port is None else base_port
    endpoints = {}
    for i, (name, host) in enumerate(zip(processes, tasks, strict=True)):
        address = addresses.get(host, host)
        bare = f"[{address}]" if ":" in address else address
        endpoints[name] = f"{bare}:{first + i}"
    return Surroundings(processes[rank], endpoints)


def _hosts_of_tasks(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the host of each task in the order of the tasks, over all groups of the job."""
    hosts = expand_hosts(_text(environment, "SLURM_STEP_NODELIST"))
    counts = expand_tasks(_text(environment, "SLURM_STEP_TASKS_PER_NODE"))
    if len(hosts) != len(counts):
        raise PlacerError(
            f"SLURM_STEP_NODELIST has {plural(len(hosts), 'host')}, and"
            f" SLURM_STEP_TASKS_PER_NODE {plural(len(counts), 'number')}"
        )
    tasks = dict(zip(hosts, counts, strict=True))
    for host in _in_order_of_groups(hosts, environment):
        yield from [host] * tasks[host]


def _in_order_of_groups(
    hosts: Sequence[str], environment: Mapping[str, str]
) -> Sequence[str]:
    """Return the hosts group by group, in the order of the tasks."""
    size = environment.get("SLURM_HET_SIZE", "0")
    groups = range(int(size) if re.fullmatch("[0-9]{1,4}", size) else 0)
    lists = [environment.get(f"SLURM_JOB_NODELIST_HET_GROUP_{i}", "") for i in groups]
    ordered = [host for text in filter(None, lists) for host in expand_hosts(text)]
    # A step may use only some of the groups.
    return ordered if sorted(ordered) == sorted(hosts) else hosts


def _text(environment: Mapping[str, str], name: str) -> str:
    try:
        return environment[name]
    except KeyError:
        raise PlacerError(
            f"--node auto: SLURM_PROCID is set, but {name} is not",
            hint="start the nodes with srun",
        ) from None


def _number(environment: Mapping[str, str], name: str) -> int:
    text = _text(environment, name)
    if not re.fullmatch("[0-9]{1,9}", text):
        raise PlacerError(f"{name} is '{text}', which is not a number")
    return int(text)
