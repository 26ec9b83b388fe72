"""Chooses servers for the forward ops whose place is `/node:ps` without a number.

Ops that use each other's results form a group. A group runs on one server, so that its ops
send nothing to each other. A group has three loads: the bytes of the parameters that only
its ops use, with their optimizer state; the bytes that it receives and sends in a step; and
its declared FLOPs. Each load is divided by the sum over all groups, to make them
comparable.

The choice is greedy, as in longest-processing-time scheduling. The group with the largest
sum of relative loads comes first. Each group goes to the server whose largest relative load
is then the smallest. Ties go to the smaller sum, then to the first server. Ops with a fixed
server count as initial load of this server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add

from placer.compiler.graph.flops import FlopsCache, op_flops
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.keyed import is_keyed
from placer.compiler.graph.stored_bytes import find_update, stored_bytes
from placer.compiler.graph.structural_ops import is_optimizer_part
from placer.place import SERVER

Load = tuple[int, ...]
"""Stored bytes, moved bytes and FLOPs of a step. Relative loads divide each by the sum over
all groups, in units of 1 / _ONE."""
NO_LOAD: Load = (0, 0, 0)
_LOAD_NAMES = ("bytes stored", "bytes moved", "FLOPs")
_ONE = 1 << 40  # fixed point: integers give the same choice on every machine


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """The server chosen for a group.

    Attributes:
        server: the number of the server.
        group_load: the load of the group.
        previous_load: the load of the server before the group.
    """

    server: int
    group_load: Load
    previous_load: Load

    @property
    def why(self) -> str:
        """The reason for the choice, as part of a sentence."""
        stored, moved, flops = (f"{each:,}" for each in self.group_load)
        loads = zip(self.previous_load, _LOAD_NAMES, strict=True)
        before = ", ".join(f"{each:,} {name}" for each, name in loads if each)
        return (
            "this server then has the least load. The op and the ops connected to it store"
            f" {stored} bytes of parameters and slots. Per step they move {moved} bytes and"
            f" compute {flops} FLOPs. Before, the server had {before or 'no load'}"
        )


def choose_servers(graph: Graph, forward: Sequence[Op]) -> dict[Op, ServerChoice]:
    """Return the chosen server of each op that `is_on_any_server`.

    Args:
        graph: the graph.
        forward: the forward ops in program order.
    """
    group_of_op = _find_groups(forward)
    if not group_of_op:
        return {}
    # Ops with a fixed server form one group per server, numbered ~server (negative).
    for op in forward:
        if (server := _given_server(op)) is not None:
            group_of_op[op] = ~server
    loads = _group_loads(graph, forward, group_of_op)
    groups = {group: load for group, load in loads.items() if group >= 0}
    server_loads = {~group: load for group, load in loads.items() if group < 0}
    choices = _assign(groups, server_loads, graph.cluster.kind(SERVER).count)
    return {op: choices[group] for op, group in group_of_op.items() if group >= 0}


def is_on_any_server(op: Op) -> bool:
    """Whether the op's place is the servers, without a number."""
    place = op.place
    return place is not None and place.node == SERVER and place.node_ids is None


def _given_server(op: Op) -> int | None:
    """Return the number of the only server in the op's place, if fixed."""
    place = op.place
    if place is None or place.node != SERVER or not isinstance(place.node_ids, tuple):
        return None
    return place.node_ids[0] if len(place.node_ids) == 1 else None


def _find_groups(forward: Iterable[Op]) -> dict[Op, int]:
    """Return the group of each op that `is_on_any_server`."""
    parents: dict[int, int] = {}  # union-find; the smallest group is the root
    group_of_op: dict[Op, int] = {}
    group_of: dict[str, int | None] = {}  # by value; None if computed elsewhere

    def find(group: int) -> int:
        while parents[group] != group:
            parents[group] = parents[parents[group]]
            group = parents[group]
        return group

    for op in forward:
        operand_groups = [group_of[name] for name in op.operands if name in group_of]
        group = None
        if is_on_any_server(op):
            joined = sorted({find(each) for each in operand_groups if each is not None})
            group = group_of_op[op] = joined[0] if joined else len(parents)
            parents.update(dict.fromkeys(joined or [group], group))
        elif op.place is None and operand_groups:
            # The place pass puts this op with its first operand, so it connects its
            # users to the group of the operand.
            group = operand_groups[0]
        group_of.update((value.name, group) for value in op.results)
    return {op: find(group) for op, group in group_of_op.items()}


def _group_loads(
    graph: Graph, forward: Iterable[Op], group_of_op: Mapping[Op, int]
) -> dict[int, Load]:
    """Return the load of each group, in order of the groups' first ops."""
    with_gradients = dict(group_of_op)  # a gradient op runs with its forward op
    for op in graph.ops:
        if op.is_gradient:
            forward_op = graph.producers[op.operands[0]]
            if forward_op in group_of_op:
                with_gradients[op] = group_of_op[forward_op]
    cache = FlopsCache()
    loads: dict[int, Load] = {}
    for op in forward:
        if op in group_of_op:
            flops = op_flops(graph, op, graph.batch, cache)
            _add_load(loads, group_of_op[op], (0, 0, flops))
    stored = stored_bytes(graph)
    for op in graph.parameters:
        group = _only_user(graph, op, group_of_op)
        if group is not None:
            _add_load(loads, group, (stored[op.name], 0, 0))
    for op in graph.ops:
        for value in op.results:
            if is_keyed(graph, value.name):
                continue  # only the rows of some keys move, not the whole table
            for group in _senders_and_receivers(graph, op, value.name, with_gradients):
                _add_load(loads, group, (0, value.type.nbytes(graph.batch), 0))
    return loads


def _add_load(loads: dict[int, Load], group: int, load: Load) -> None:
    loads[group] = tuple(map(add, loads.get(group, NO_LOAD), load))


def _only_user(
    graph: Graph, parameter: Op, group_of_op: Mapping[Op, int]
) -> int | None:
    """Return the only group that uses a parameter, if any server may store it."""
    users = [
        op
        for op in graph.uses.get(parameter.name, ())
        if not op.is_gradient and op.is_computed and not is_optimizer_part(op.kind)
    ]
    groups = {group_of_op.get(op) for op in users}
    update = find_update(graph, parameter.name)
    is_free = update is None or update.place is None or is_on_any_server(update)
    return groups.pop() if len(groups) == 1 and is_free else None


def _senders_and_receivers(
    graph: Graph, op: Op, value: str, group_of_op: Mapping[Op, int]
) -> set[int]:
    """Return the groups that send or receive a value."""
    # Inputs do not count, since each user reads them. Parameters, their gradients and
    # constants do not count either, since they stay on the server.
    if not op.is_computed or op.kind == "constant" or is_optimizer_part(op.kind):
        return set()
    producer = group_of_op.get(op)
    users = [
        user
        for user in graph.uses.get(value, ())
        if user.is_computed and not is_optimizer_part(user.kind)
    ]
    if op.is_gradient:
        users = [user for user in users if not _sums_for_parameter(graph, user)]
    others = {group_of_op.get(user) for user in users} - {producer}
    groups = {producer, *others} if others else set()
    return {group for group in groups if group is not None}


def _sums_for_parameter(graph: Graph, op: Op) -> bool:
    return (
        op.kind == "accumulate" and graph.producers[op.attrs["of"]].kind == "parameter"
    )


def _assign(
    groups: Mapping[int, Load], server_loads: Mapping[int, Load], servers: int
) -> dict[int, ServerChoice]:
    """Assign a server to each group, as described at the top of this module."""
    # Servers without load are equal, so only the first of them is a candidate.
    totals = [
        sum(load) for load in zip(*groups.values(), *server_loads.values(), strict=True)
    ]

    def relative(load: Load) -> Load:
        return tuple(
            _ONE * part // total if total else 0
            for part, total in zip(load, totals, strict=True)
        )

    current = dict(server_loads)
    current_relative = {server: relative(load) for server, load in server_loads.items()}
    weights = {group: relative(load) for group, load in groups.items()}
    choices: dict[int, ServerChoice] = {}
    for group in sorted(groups, key=lambda group: (-sum(weights[group]), group)):
        idle = next((i for i in range(servers) if i not in current), None)
        after = {
            server: tuple(
                map(add, current_relative.get(server, NO_LOAD), weights[group])
            )
            for server in (*current, *(() if idle is None else (idle,)))
        }
        best = min(after, key=lambda i: (max(after[i]), sum(after[i]), i))
        previous_load = current.get(best, NO_LOAD)
        choices[group] = ServerChoice(best, groups[group], previous_load)
        current[best] = tuple(map(add, previous_load, groups[group]))
        current_relative[best] = after[best]
    return choices
