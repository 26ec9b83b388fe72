"""Groups equal nodes, and lists the devices of each group.

Nodes are equal if they run the same ops. Their numbers of rows and their peers may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.schedule.node_classes import node_tuples
from placer.place.node_kinds import CPU, NodeId

MAX_COLUMNS = 16
HOST = f"{CPU}:0"
"""The device of host memory, as `Graph.devices` names it."""


@dataclass(frozen=True, slots=True)
class DeviceColumn:
    """A set of devices of equal nodes that compute together.

    Attributes:
        group: the index of the group of nodes.
        devices: the devices, such as `gpu:0-7`.
    """

    group: int
    devices: str

    @property
    def title(self) -> str:
        """The devices as people write them: `cpu` for host memory."""
        return CPU if self.devices == HOST else self.devices

    @property
    def count(self) -> int:
        """The number of devices on each node."""
        _, _, ids = self.devices.partition(":")
        ranges = (part.partition("-") for part in ids.split(","))
        return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def group_nodes(graph: Graph) -> list[tuple[NodeId, ...]]:
    """Return the nodes of each group, in the order of their first nodes."""
    at: dict[NodeId, list[int]] = {node: [] for node in graph.cluster.all_nodes()}
    for number, nodes in enumerate(node_tuples(graph)):
        for node in nodes:
            at[NodeId(node)].append(number)
    groups: dict[tuple[str, tuple[int, ...]], list[NodeId]] = {}
    for node, numbers in at.items():
        groups.setdefault((node.kind, tuple(numbers)), []).append(node)
    return [tuple(nodes) for nodes in groups.values()]


class Columns:
    """The columns of a graph.

    Attributes:
        groups: the nodes of each group.
        group_of: the index of the group of each node.
        columns: the columns. Columns of a group follow each other, host memory first.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.groups = group_nodes(graph)
        self.group_of = {
            node: number for number, nodes in enumerate(self.groups) for node in nodes
        }
        places = {id(op.place): op for op in graph.ops if not op.structure.directive}
        found: dict[int, set[str]] = {
            number: set() for number in range(len(self.groups))
        }
        for op in places.values():
            for number in self._groups(op):
                found[number].add(graph.devices(op))
        self.columns = [
            DeviceColumn(group, devices)
            for group, sets in found.items()
            for devices in sorted(sets or {HOST}, key=_device_order)
        ]
        index = {column: number for number, column in enumerate(self.columns)}
        self._of_place: dict[int, tuple[tuple[int, int], ...]] = {
            place: tuple(
                (number, index[DeviceColumn(number, graph.devices(op))])
                for number in self._groups(op)
            )
            for place, op in places.items()
        }

    def of(self, op: Op) -> tuple[tuple[int, int], ...]:
        """Return the groups that run an op, each with the column of the op."""
        return self._of_place[id(op.place)]

    def _groups(self, op: Op) -> Sequence[int]:
        return list(dict.fromkeys(self.group_of[n] for n in self._graph.nodes(op)))


def _device_order(devices: str) -> tuple[bool, str, list[int]]:
    kind, _, ids = devices.partition(":")
    return devices != HOST, kind, [int(n) for n in ids.replace("-", ",").split(",")]


def fold_columns(
    columns: Sequence[DeviceColumn], kinds: Sequence[str]
) -> list[int | None]:
    """Return which columns are drawn alone, if only `MAX_COLUMNS` fit.

    Columns that do not fit share a column with others of their node kind.

    Args:
        columns: the columns.
        kinds: the node kind of each column.

    Returns:
        for each column, None if it is drawn alone, else the number of its node kind, whose
        column it shares.
    """
    names = list(dict.fromkeys(kinds))
    if len(names) > MAX_COLUMNS:  # all kinds share one column
        names, kinds = [""], [""] * len(kinds)
    counts = {kind: kinds.count(kind) for kind in names}
    alone = dict(counts)
    while sum(alone[k] + (alone[k] < counts[k]) for k in names) > MAX_COLUMNS:
        alone[max(names, key=alone.__getitem__)] -= 1
    folded: list[int | None] = []
    for kind in kinds:
        folded.append(None if alone[kind] > 0 else names.index(kind))
        alone[kind] -= 1
    return folded
