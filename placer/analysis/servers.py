"""Which server runs the forward ops that are placed on servers without saying which.

Ops of which one takes what another makes stand together: nothing is sent between them.
Each such group is given to a server by three loads: the bytes of the parameters that
stand with it, the state of their optimizers included; the bytes that it receives and
sends in a step; and its declared FLOPs. A load counts as its share of the sum over all
groups. The group with the largest shares comes first, and goes where the largest of the
server's three shares is then the smallest; the first server wins a tie. Ops that name
one server are counted there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

from placer.analysis.flops import Known, flops
from placer.analysis.stored_bytes import stored_bytes, update_of
from placer.graph.graph import Graph, Op
from placer.graph.kinds import is_optimizers
from placer.place import SERVER

Load = tuple[int, ...]
"""Bytes that are stored, bytes that are moved in a step, FLOPs of a step."""
NOTHING: Load = (0, 0, 0)
_WHOLE = 1 << 40
"""A share of 1."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The server of a group, what the group loads it with, and what it had before."""

    server: int
    brings: Load
    had: Load

    def attr(self) -> Mapping[str, Any]:
        """What decided, as the attribute `server` of the ops."""
        return {"brings": [*self.brings], "had": [*self.had]}


def servers_of(graph: Graph, forward: Sequence[Op]) -> dict[int, Chosen]:
    """The server of each of these ops, forward ops in program order, that stands on some
    server: by the identity of the op."""
    member = _members(forward)
    if not member:
        return {}
    open_ = set(member.values())
    fixed = max(open_) + 1  # groups of ops that name their server follow
    for op in forward:
        if (server := _named(op)) is not None:
            member[id(op)] = fixed + server
    loads = _loads(graph, forward, member)
    there = {group - fixed: load for group, load in loads.items() if group >= fixed}
    groups = {group: load for group, load in loads.items() if group < fixed}
    chosen = _dealt(groups, there, graph.cluster.kind(SERVER).count)
    return {at: chosen[group] for at, group in member.items() if group < fixed}


def is_open(op: Op) -> bool:
    """Whether the op is placed on some server, and does not say on which."""
    place = op.place
    return place is not None and place.node == SERVER and place.node_ids is None


def _named(op: Op) -> int | None:
    """The id of the one server that the op is placed on, if it says one."""
    place = op.place
    if place is None or place.node != SERVER or not isinstance(place.node_ids, tuple):
        return None
    return place.node_ids[0] if len(place.node_ids) == 1 else None


def _members(forward: Iterable[Op]) -> dict[int, int]:
    """The group of each op that stands on some server, by the identity of the op."""
    groups = _Groups()
    member: dict[int, int] = {}
    group_of: dict[str, int | None] = {}  # by value; None where it stands elsewhere
    for op in forward:
        near = [group_of[name] for name in op.operands if name in group_of]
        group = None
        if is_open(op):
            met = (group for group in near if group is not None)
            group = member[id(op)] = groups.joined(met)
        elif op.place is None and near:
            group = near[0]  # it stands with what it takes first
        group_of.update((value.name, group) for value in op.results)
    return {at: groups.first(group) for at, group in member.items()}


def _loads(
    graph: Graph, forward: Iterable[Op], member: Mapping[int, int]
) -> dict[int, Load]:
    """What each group loads a server with, in the order of their first ops."""
    of_op = dict(member)  # with the gradient ops, which stand with their forward ops
    for op in graph.ops:
        if op.is_gradient:
            at = id(graph.producers[op.operands[0]])
            if at in member:
                of_op[id(op)] = member[at]
    known: Known = {}
    found: dict[int, Load] = {}
    for op in forward:
        if id(op) in member:
            spent = flops(graph, op, graph.batch, known)
            _count(found, member[id(op)], (0, 0, spent))
    stored = stored_bytes(graph)
    for op in graph.of_kind("parameter"):
        group = _alone(graph, op, member)
        if group is not None:
            _count(found, group, (stored[op.name], 0, 0))
    for op in graph.ops:
        for value in op.results:
            for group in _crossed(graph, op, value.name, of_op):
                _count(found, group, (0, value.type.nbytes(graph.batch), 0))
    return found


def _count(found: dict[int, Load], group: int, load: Load) -> None:
    found[group] = tuple(map(add, found.get(group, NOTHING), load))


def _alone(graph: Graph, parameter: Op, member: Mapping[int, int]) -> int | None:
    """The group that a parameter stands with: its ops alone use it, and its optimizer
    may be on any server."""
    users = [
        op
        for op in graph.uses.get(parameter.name, ())
        if not (op.is_gradient or is_optimizers(op.kind) or op.kind == "store")
    ]
    groups = {member.get(id(op)) for op in users}
    update = update_of(graph, parameter.name)
    free = update is None or update.place is None or is_open(update)
    return groups.pop() if len(groups) == 1 and free else None


def _crossed(graph: Graph, op: Op, value: str, of_op: Mapping[int, int]) -> set[int]:
    """The groups that receive or send a value: inputs are read where they are used, and
    parameters, their gradients and constants stay where they are."""
    if op.kind in ("read", "parameter", "constant") or is_optimizers(op.kind):
        return set()
    here = of_op.get(id(op))
    users = [
        user
        for user in graph.uses.get(value, ())
        if not is_optimizers(user.kind) and user.kind != "record"
    ]
    if op.is_gradient:
        users = [user for user in users if not _sums_for_parameter(graph, user)]
    there = {of_op.get(id(user)) for user in users} - {here}
    crossed = {here, *there} if there else set()
    return {group for group in crossed if group is not None}


def _sums_for_parameter(graph: Graph, op: Op) -> bool:
    return (
        op.kind == "accumulate" and graph.producers[op.attrs["of"]].kind == "parameter"
    )


def _dealt(
    groups: Mapping[int, Load], there: Mapping[int, Load], servers: int
) -> dict[int, Chosen]:
    """A server for each group. Of the servers that have nothing yet only the first is
    looked at."""
    totals = [sum(load) for load in zip(*groups.values(), *there.values(), strict=True)]

    def shares(load: Load) -> Load:
        return tuple(
            _WHOLE * a // b if b else 0 for a, b in zip(load, totals, strict=True)
        )

    held = dict(there)
    shared = {server: shares(load) for server, load in there.items()}
    weight = {group: shares(load) for group, load in groups.items()}
    chosen: dict[int, Chosen] = {}
    for group in sorted(groups, key=lambda group: (-sum(weight[group]), group)):
        idle = next((i for i in range(servers) if i not in held), None)
        after = {
            server: tuple(map(add, shared.get(server, NOTHING), weight[group]))
            for server in (*held, *(() if idle is None else (idle,)))
        }
        best = min(after, key=lambda i: (max(after[i]), sum(after[i]), i))
        had = held.get(best, NOTHING)
        chosen[group] = Chosen(best, groups[group], had)
        held[best] = tuple(map(add, had, groups[group]))
        shared[best] = after[best]
    return chosen


class _Groups:
    """Sets of ops that become one where they meet; each is known by its first."""

    def __init__(self) -> None:
        self._before: list[int] = []

    def joined(self, groups: Iterable[int]) -> int:
        """One group of all of these; a new one of none."""
        firsts = sorted({self.first(group) for group in groups})
        if not firsts:
            firsts = [len(self._before)]
            self._before.append(firsts[0])
        for other in firsts[1:]:
            self._before[other] = firsts[0]
        return firsts[0]

    def first(self, group: int) -> int:
        while self._before[group] != group:
            self._before[group] = self._before[self._before[group]]
            group = self._before[group]
        return group
