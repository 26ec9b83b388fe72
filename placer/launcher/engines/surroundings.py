"""Which node a process is, and where the others are: from what an engine says on a node.

`placer run BUILD --node auto` asks in this order:

- `PLACER_NODE`, such as `worker:0`;
- `PLACER_KIND` and `PLACER_INDEX`, such as `worker` and `0`;
- the variables that Slurm sets in the tasks of a step: task i is the i-th process of the
  plan, and its host follows from the list of hosts and the tasks of each.

Addresses are those of `PLACER_ENDPOINTS`, or follow from Slurm's variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from placer.errors import PlacerError
from placer.launcher.engines.host_lists import expand_hosts, expand_tasks
from placer.place.node_kinds import NodeId
from placer.plan.plan import BASE_PORT
from placer.report.numbers import plural

NODE: Final = "PLACER_NODE"
KIND: Final = "PLACER_KIND"
INDEX: Final = "PLACER_INDEX"
ADDRESSES: Final = "PLACER_SLURM_ADDRESSES"
"""The addresses of Slurm's nodes, `NAME=ADDRESS,…`, where they are not their names."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The node that a process is, and the addresses that are known from its
    surroundings."""

    node: str
    endpoints: dict[str, str] = field(default_factory=dict)


def look_around(
    processes: Sequence[str],
    environment: Mapping[str, str],
    base_port: int | None = None,
) -> Surroundings:
    """Return which process of a plan this one is.

    Args:
        processes: the names of all processes of the plan, in its order.
        environment: the environment of this process.
        base_port: the port of the first process, where addresses follow from the hosts.

    Raises:
        PlacerError: the surroundings say nothing, or do not fit the plan.
    """
    if NODE in environment:
        return Surroundings(_known(processes, environment[NODE], NODE))
    if KIND in environment or INDEX in environment:
        return Surroundings(_numbered(processes, environment))
    if "SLURM_PROCID" in environment:
        return _of_slurm(processes, environment, base_port)
    if "SLURM_JOB_ID" in environment:
        raise PlacerError(
            "--node auto: this is a batch script of Slurm, and none of its tasks",
            hint="start the nodes by srun",
        )
    raise PlacerError(
        f"--node auto: neither {NODE}, nor {KIND} and {INDEX}, nor Slurm's variables"
        " are set",
        hint=f"--node names the node: one of {', '.join(processes)}",
    )


def _known(processes: Sequence[str], node: str, variable: str) -> str:
    if node not in processes:
        raise PlacerError(
            f"{variable} is '{node}', and this build has no such node",
            hint=f"one of: {', '.join(processes)}",
        )
    return node


def _numbered(processes: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the node that a kind and a number name."""
    kind, index = environment.get(KIND, ""), environment.get(INDEX, "")
    count = sum(NodeId(name).kind == kind for name in processes)
    if not count:
        kinds = ", ".join(dict.fromkeys(NodeId(name).kind for name in processes))
        raise PlacerError(
            f"{KIND} is '{kind}', and this build has no such nodes",
            hint=f"one of: {kinds}",
        )
    if not re.fullmatch("[0-9]{1,6}", index) or int(index) >= count:
        raise PlacerError(
            f"{INDEX} is '{index}', and this build has {plural(count, 'node')} of kind"
            f" '{kind}', from 0 on",
            hint="start as many as the build has, or compile it with"
            " --nodes for as many as are started",
        )
    return f"{kind}:{int(index)}"


def _of_slurm(
    processes: Sequence[str], environment: Mapping[str, str], base_port: int | None
) -> Surroundings:
    """Return the node of a task of a step of Slurm, and the addresses of all."""
    tasks = list(_hosts_of_tasks(environment))
    rank = _number(environment, "SLURM_PROCID")
    if len(tasks) != len(processes):
        raise PlacerError(
            f"Slurm has started {plural(len(tasks), 'task')}, and this build has"
            f" {plural(len(processes), 'process', 'processes')}:"
            f" {', '.join(processes)}",
            hint=f"srun --ntasks={len(processes)}",
        )
    if rank >= len(tasks):
        raise PlacerError(f"SLURM_PROCID is {rank}, of {plural(len(tasks), 'task')}")
    here = environment.get("SLURMD_NODENAME", tasks[rank])
    if here != tasks[rank]:
        raise PlacerError(
            f"task {rank} of Slurm is on {here}, and not on {tasks[rank]} as"
            " SLURM_STEP_TASKS_PER_NODE says",
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
    """Yield the host of each task of the step, in the order of the tasks: those of all
    groups of a heterogeneous job, which share one numbering."""
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
    """Return the hosts of a step in the order of its tasks, which are numbered group by
    group: a group may have hosts that are before those of the group before it."""
    size = environment.get("SLURM_HET_SIZE", "0")
    groups = range(int(size) if re.fullmatch("[0-9]{1,4}", size) else 0)
    lists = [environment.get(f"SLURM_JOB_NODELIST_HET_GROUP_{i}", "") for i in groups]
    ordered = [host for text in filter(None, lists) for host in expand_hosts(text)]
    # A step may be in some of the groups only.
    return ordered if sorted(ordered) == sorted(hosts) else hosts


def _text(environment: Mapping[str, str], name: str) -> str:
    try:
        return environment[name]
    except KeyError:
        raise PlacerError(
            f"--node auto: SLURM_PROCID is set, and {name} is not",
            hint="start the nodes by srun",
        ) from None


def _number(environment: Mapping[str, str], name: str) -> int:
    text = _text(environment, name)
    if not re.fullmatch("[0-9]{1,9}", text):
        raise PlacerError(f"{name} is '{text}', and not a number")
    return int(text)
