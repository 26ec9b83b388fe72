"""Divides the ops of each node into boxes, so that the boxes and their messages have no cycle.

Each op starts as a unit. The computed ops of a segment form one unit, as in the program of
the node. All reads of a device form one unit, and all its stored parameters form another.
Then:

1. A unit that is not work itself joins another unit of its node. A send, a metric, a
   copy to host memory, a cut and a sum over microbatches join the last unit that they
   depend on. A receive, a copy to a device, a joined parameter and a sum by key join the
   first unit that depends on them. The order of units stays topological in both cases.
2. Units with the same work on the same device become one box, unless messages or other
   work lie between them.

A send-and-receive op is in the box that sends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, Literal

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_kind import StructuralKind
from placer.compiler.graph.structural_ops import is_conversion, is_optimizer_part
from placer.report.page.columns import Columns
from placer.report.page.facts import Purpose

_Role = Purpose | Literal["before", "after", "message", "compute"]
"""The work of a unit. `before` and `after`: it joins the unit before it or after it."""

_ROLES: Final[dict[str, _Role]] = {
    "read": "read",
    "parameter": "store",
    "sparse_table": "store",
    "local_parameter": "store",
    "distinct_keys": "lookup",
    "distributed_lookup_table": "lookup",
    "exact_squares": "update",
    "rounded_sum": "update",
    "assemble": "after",
    "sum_by_key": "after",
    "memcpy_h2d": "after",
    "memcpy_d2d": "after",
}
_SOURCES: Final = frozenset({"read", "parameter", "sparse_table"})
"""Ops without operands. Those of a device share a unit."""
_MERGED: Final = frozenset({"store", "read", "lookup", "update", "combine"})
"""The roles whose units merge."""
_PARTS_OF_SUMS: Final = frozenset(
    {"accumulate", "clip_part", "row_share", "row_estimate"}
)


@dataclass(slots=True)
class Box:
    """Ops of a column that the picture shows as one box.

    Attributes:
        column: the index of the column.
        purpose: the kind of work.
        ops: the ops, in program order.
        row: the row.
    """

    column: int
    purpose: Purpose
    ops: list[Op] = field(default_factory=list)
    row: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A value that one box makes and another box of the same nodes uses."""

    source: int
    target: int
    value: str


@dataclass(frozen=True, slots=True)
class Boxes:
    """The boxes of a graph.

    Attributes:
        boxes: the boxes.
        before: for each box, the boxes that it depends on, with True for a message.
        senders, receivers: the boxes that send and receive the message of each edge, by
            edge and group of nodes.
        links: the values that boxes of other devices of the same nodes use.
    """

    boxes: list[Box]
    before: list[dict[int, bool]]
    senders: dict[int, dict[int, int]]
    receivers: dict[int, dict[int, int]]
    links: list[Link]


@dataclass(slots=True)
class _Unit:
    """A vertex of the graph of units.

    Attributes:
        group: the group of nodes; -1 for a message.
        column: the column of its ops.
        role: the role.
        first: the position of its first op in the program.
        ops: the ops, with their positions.
        before: the units that it depends on.
    """

    group: int
    column: int
    role: _Role
    first: int
    ops: list[tuple[int, Op]] = field(default_factory=list)
    before: set[int] = field(default_factory=set)


def make_boxes(graph: Graph, columns: Columns) -> Boxes:
    """Return the boxes of a graph, without rows."""
    builder = _Builder(graph, columns)
    builder.add_ops()
    builder.add_messages()
    builder.join()
    return builder.boxes()


class _Builder:
    def __init__(self, graph: Graph, columns: Columns) -> None:
        self.graph, self.columns = graph, columns
        self.units: list[_Unit] = []
        self.made: list[dict[str, int]] = [{} for _ in columns.groups]
        """The unit that makes each value, for each group."""
        self.shared: dict[tuple[object, ...], int] = {}
        """The units of segments and of sources, by what their ops have in common."""
        self.sent: dict[int, dict[int, int]] = {}
        self.received: dict[int, dict[int, int]] = {}
        self.links: dict[tuple[int, int, str], None] = {}
        self.has_devices = {
            a.group
            for a, b in zip(columns.columns, columns.columns[1:], strict=False)
            if a.group == b.group
        }
        self.parts: dict[int, list[str]] = {}
        """The parts of a training step that each segment has: forward, backward, …"""

    def _new(self, group: int, column: int, role: _Role, first: int) -> int:
        self.units.append(_Unit(group, column, role, first))
        return len(self.units) - 1

    def add_ops(self) -> None:
        """Make the units of all ops."""
        graph, units, made_by = self.graph, self.units, self.made
        roles: dict[str, _Role] = {}
        has_microbatches = graph.microbatches > 1
        for position, op in enumerate(graph.ops):
            structure = op.structure
            if structure.directive:
                continue
            role = roles.get(op.kind)
            if role is None:
                role = roles[op.kind] = _role_of(op.kind, structure)
            for group, column in self.columns.of(op):
                if role == "compute" or op.kind in _SOURCES:
                    repeated = has_microbatches and graph.is_repeated(op)
                    attrs = op.attrs
                    once = attrs.get("once", False)
                    key = column, role, attrs.get("segment"), repeated, once
                    number = self.shared.get(key)
                    if number is None:
                        number = self.shared[key] = self._new(
                            group, column, role, position
                        )
                else:
                    number = self._new(group, column, role, position)
                unit, made = units[number], made_by[group]
                unit.ops.append((position, op))
                before = unit.before
                for name in op.operands:
                    source = made.get(name)
                    if source is not None and source != number:
                        before.add(source)
                        if group in self.has_devices:
                            self.links[source, number, name] = None
                if structure.sends:
                    self.sent.setdefault(int(op.attrs["edge"]), {})[group] = number
                if structure.receives:
                    edge = op.attrs["edge"]
                    if structure.sends:  # its reply arrives in another box
                        edge = op.attrs["back"]
                        number = self._new(group, column, "after", position)
                    self.received.setdefault(int(edge), {})[group] = number
                for value in op.results:
                    made[value.name] = number
        for unit in units:
            if unit.role == "compute":
                unit.role = _purpose_of([op for _, op in unit.ops])

    def add_messages(self) -> None:
        """Make a unit of each message, between the units of its senders and receivers."""
        for edge, receivers in self.received.items():
            senders = self.sent[edge].values()
            first = min(self.units[number].first for number in senders)
            message = self._new(-1, -1, "message", first)
            self.units[message].before.update(senders)
            for number in receivers.values():
                self.units[number].before.add(message)

    def join(self) -> None:
        """Join each unit that is not work itself to another unit."""
        units = self.units
        order = sort_topologically([u.before for u in units], [u.first for u in units])
        self.place = [0] * len(units)
        for place, number in enumerate(order):
            self.place[number] = place
        self.joined = list(range(len(units)))
        after: list[list[int]] = [[] for _ in units]
        for number, unit in enumerate(units):
            for source in unit.before:
                after[source].append(number)
        waiting: dict[int, list[int]] = {}
        for number in order:
            unit = units[number]
            if unit.role == "before":
                last = max(map(self._root, unit.before), key=self._place, default=None)
                stored = unit.ops[0][1].kind == "store"
                if last is None or units[last].role == "message":
                    unit.role = "after"
                elif stored and units[last].role == "after":
                    unit.role = "update"
                else:
                    self.joined[number] = last
                    if units[last].role == "after":
                        waiting.setdefault(last, []).append(number)
        work: dict[int, list[tuple[int, int]]] = {}
        for number in order:
            unit = units[number]
            if self.joined[number] == number and unit.role not in ("after", "message"):
                work.setdefault(unit.column, []).append((self.place[number], number))
        for number in reversed(order):
            unit = units[number]
            if unit.role != "after" or self.joined[number] != number:
                continue
            users = {
                self._root(user)
                for member in (number, *waiting.get(number, ()))
                for user in after[member]
            } - {number}
            first = min(users, key=self._place, default=None)
            if first is None:
                first = self._work_after(work.get(unit.column, []), number)
            if first is None or units[first].role == "message":
                unit.role = "combine"  # a node that passes a sum on
            else:
                self.joined[number] = first

    def _work_after(self, work: Sequence[tuple[int, int]], number: int) -> int | None:
        """Return the next work of a column after a unit whose results it does not use."""
        at = bisect_right(work, (self.place[number], number))
        return work[at][1] if at < len(work) else None

    def _place(self, number: int) -> int:
        return self.place[number]

    def _root(self, number: int) -> int:
        joined = self.joined
        while joined[number] != number:
            joined[number] = joined[joined[number]]
            number = joined[number]
        return number

    def boxes(self) -> Boxes:
        """Merge units with the same work, and return the boxes."""
        units = self.units
        roots = [self._root(number) for number in range(len(units))]
        before: list[dict[int, bool]] = [{} for _ in units]
        for number, unit in enumerate(units):
            root = roots[number]
            for source in unit.before:
                if roots[source] != root:
                    before[root][roots[source]] = False
        keys = [
            (unit.column, unit.role)
            if roots[number] == number and unit.role in _MERGED
            else None
            for number, unit in enumerate(units)
        ]
        merged = merge(before, keys, [unit.first for unit in units])
        ends = _merge_ends(before, keys, merged)
        roots = [ends[merged[root]] for root in roots]
        kept = [n for n, unit in enumerate(units) if roots[n] == n]
        index = {root: i for i, root in enumerate(kept)}
        found = [Box(units[n].column, _purpose(units[n].role)) for n in kept]
        ops: list[list[tuple[int, Op]]] = [[] for _ in kept]
        links: list[dict[int, bool]] = [{} for _ in kept]
        for number, unit in enumerate(units):
            at = index[roots[number]]
            ops[at] += unit.ops
            for source in unit.before:
                if (other := index[roots[source]]) != at:
                    links[at][other] = False
        for box, own in zip(found, ops, strict=True):
            own.sort(key=_position)
            box.ops = [op for _, op in own]
        return self._without_messages(found, links, index, roots)

    def _without_messages(
        self,
        found: list[Box],
        before: list[dict[int, bool]],
        index: dict[int, int],
        roots: list[int],
    ) -> Boxes:
        """Return the boxes of units that are not messages."""
        number: dict[int, int] = {}
        for i, box in enumerate(found):
            if box.column >= 0:
                number[i] = len(number)

        def box_of(unit: int) -> int:
            return number[index[roots[unit]]]

        boxes = [found[i] for i in number]
        sources: list[dict[int, bool]] = [
            {number[s]: False for s in before[i] if s in number} for i in number
        ]
        senders = {
            edge: {group: box_of(unit) for group, unit in of.items()}
            for edge, of in self.sent.items()
        }
        receivers = {
            edge: {group: box_of(unit) for group, unit in of.items()}
            for edge, of in self.received.items()
        }
        for edge, targets in receivers.items():
            for target in targets.values():
                sources[target].update(dict.fromkeys(senders[edge].values(), True))
        links = [
            Link(box_of(source), box_of(target), value)
            for source, target, value in self.links
        ]
        links = [
            link
            for link in links
            if boxes[link.source].column != boxes[link.target].column
        ]
        return Boxes(boxes, sources, senders, receivers, links)


def _position(entry: tuple[int, Op]) -> int:
    return entry[0]


def _role_of(kind: str, structure: StructuralKind) -> _Role:
    if structure.name == "":
        return "compute"
    if kind in _ROLES:
        return _ROLES[kind]
    if structure.update is not None:
        return "update"
    if structure.scatters or (structure.receives and not structure.sends):
        return "after"
    return "before"


def _purpose(role: _Role) -> Purpose:
    assert role not in ("before", "after", "compute"), role
    return "other" if role == "message" else role  # type: ignore[return-value]


def _purpose_of(ops: Sequence[Op]) -> _Role:
    """Return the work of a segment. Ops that are computed again belong to the backward pass,
    for which they are computed."""
    forward = backward = part = False
    for op in ops:
        kind = op.kind
        if kind.endswith(".grad") or op.attrs.get("again", False):
            backward = True
        elif is_optimizer_part(kind):
            part = True
        elif not (
            kind == "constant"
            or kind in _PARTS_OF_SUMS
            or is_conversion(kind)
            or "grad" in op.name.split(".")
        ):
            forward = True
    if forward:
        return "forward and backward" if backward else "forward"
    if backward:
        return "backward"
    if part:
        return "update"
    return "after" if all(op.kind == "constant" for op in ops) else "combine"


def sort_topologically(
    before: Sequence[dict[int, bool] | set[int]], first: Sequence[int]
) -> list[int]:
    """Return vertices in a topological order, with the smallest `first` among the ready ones.

    Args:
        before: the vertices before each vertex.
        first: the rank of each vertex.
    """
    missing = [len(each) for each in before]
    after: list[list[int]] = [[] for _ in before]
    for number, each in enumerate(before):
        for source in each:
            after[source].append(number)
    ready = [(first[n], n) for n, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        _, number = heappop(ready)
        order.append(number)
        for user in after[number]:
            missing[user] -= 1
            if not missing[user]:
                heappush(ready, (first[user], user))
    assert len(order) == len(before), "the boxes of a graph have a cycle"
    return order


def merge(
    before: Sequence[dict[int, bool]],
    keys: Sequence[tuple[object, ...] | None],
    first: Sequence[int],
) -> list[int]:
    """Merge vertices with equal keys, unless another vertex lies between them.

    Each vertex has a level: how often a path to it passes from one key to another. Edges
    never lead to a lower level, so merging vertices of one key and level makes no cycle.

    Args:
        before: the vertices before each vertex, with True for a message.
        keys: the key of each vertex; None for a vertex that stays alone.
        first: the rank of each vertex.

    Returns:
        for each vertex, the vertex that represents it.
    """
    levels = [0] * len(before)
    merged: dict[tuple[object, ...], int] = {}
    result = list(range(len(before)))
    for number in sort_topologically(before, first):
        key = keys[number]
        for source, is_message in before[number].items():
            step = key is None or is_message or keys[source] != key
            levels[number] = max(levels[number], levels[source] + step)
        if key is not None:
            result[number] = merged.setdefault((*key, levels[number]), number)
    return result


def _merge_ends(
    before: Sequence[dict[int, bool]],
    keys: Sequence[tuple[object, ...] | None],
    merged: Sequence[int],
) -> list[int]:
    """Merge vertices with equal keys on which nothing depends."""
    used = {
        merged[source]
        for number, each in enumerate(before)
        for source in each
        if merged[source] != merged[number]
    }
    ends: dict[tuple[object, ...], int] = {}
    result = list(range(len(before)))
    for number, key in enumerate(keys):
        if key is not None and merged[number] == number and number not in used:
            result[number] = ends.setdefault(key, number)
    return result
