"""Which server runs the forward ops that are placed on servers without saying which.

Ops of which one takes what another makes stand together: nothing is sent between them.
The groups are dealt out by their declared FLOPs, the largest first, each to the server
that has the least; the first wins a tie.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from placer.graph.blocks import dealt
from placer.graph.graph import Graph, Op
from placer.passes.flops import Known, flops
from placer.place import SERVER


def servers_of(graph: Graph, forward: Iterable[Op]) -> dict[int, int]:
    """The id of the server of each of these ops, forward ops in program order, that
    stands on some server: by the identity of the op."""
    if all(kind.name != SERVER for kind in graph.cluster.kinds):
        return {}
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
    known: Known = {}
    loads: dict[int, int] = defaultdict(int)
    for op in forward:
        if id(op) in member:
            loads[groups.first(member[id(op)])] += flops(graph, op, graph.batch, known)
    servers = dealt(list(loads.values()), graph.cluster.kind(SERVER).count)
    of_group = dict(zip(loads, servers, strict=True))
    return {at: of_group[groups.first(group)] for at, group in member.items()}


def is_open(op: Op) -> bool:
    """Whether the op is placed on some server, and does not say on which."""
    place = op.place
    return place is not None and place.node == SERVER and place.node_ids is None


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
