"""What one node does in one graph: its ops, in order, in units to be emitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from placer.analysis.node_classes import Alike
from placer.graph.graph import TOGETHER, Graph, Op
from placer.graph.kinds import (
    COPIES,
    FLAT,
    OVER,
    is_computed,
    is_conversion,
    is_once,
    is_optimizers,
)
from placer.layouts.conversions import pieces


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive ops that become one statement or one jitted function.

    `computed` units are segments: `inputs` are the values they take, `outputs` those
    that a later unit of the node needs. `once` units of an evaluation run before its
    first batch.
    """

    ops: tuple[Op, ...]
    computed: bool
    once: bool
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Phase:
    """What is emitted of one graph: the step of training, or of evaluation.

    `rows` is the number of rows of every global batch, None where the last of an epoch
    may be short.
    """

    graph: Graph
    rows: int | None
    evaluating: bool

    @cached_property
    def alike(self) -> Alike:
        """Which nodes do the same in this phase."""
        return Alike([self.graph])

    def units(self, node: str) -> tuple[Unit, ...]:
        """The node's part of the graph, the same of all nodes that are alike. Empty when
        it has none."""
        first = self.alike.first(node)
        found = self._units.get(first)
        if found is None:
            found = self._units[first] = units(self.graph, first)
        return found

    @cached_property
    def _units(self) -> dict[str, tuple[Unit, ...]]:
        return {}


def units(graph: Graph, node: str) -> tuple[Unit, ...]:
    """The node's part of a segmented graph. Empty when it has none."""
    mine = _used(graph, node)
    groups = list(_groups(graph, mine))
    here = {value.name for op in mine for value in op.results}
    last_use: dict[str, int] = {}
    for i, group in enumerate(groups):
        for op in group:
            for name in taken(graph, node, op):
                last_use[name] = i
    return tuple(
        _unit(graph, node, group, i, here, last_use, is_once(group[0]))
        for i, group in enumerate(groups)
    )


def _used(graph: Graph, node: str) -> list[Op]:
    """The node's ops, without those that make what nobody on it takes."""
    used: set[str] = set()
    found: list[Op] = []
    for op in reversed(graph.on(node)):
        pure = is_computed(op) or op.kind in _PURE
        if not pure or any(value.name in used for value in op.results):
            found.append(op)
            used.update(taken(graph, node, op))
    found.reverse()
    return found


def taken(graph: Graph, node: str, op: Op) -> tuple[str, ...]:
    """The operands that this node needs: a conversion may give it nothing but zeros."""
    if not is_conversion(op.kind):
        return op.operands
    operand, result = graph.values[op.operands[0]], op.result
    assert operand.layout is not None
    assert result.layout is not None
    layouts = operand.layout, result.layout
    sources = graph.nodes(graph.producers[operand.name])
    workers = graph.cluster.workers
    found = pieces(layouts, sources, graph.nodes(op), node, graph.batch, workers)
    return op.operands if found else ()


_PURE = COPIES | OVER | FLAT | {"read"}
"""Kinds, beside what is computed, that do nothing but make their results."""


def _groups(graph: Graph, mine: Sequence[Op]) -> Iterator[tuple[Op, ...]]:
    group: list[Op] = []
    for op in mine:
        if group and not _together(graph, group[-1], op):
            yield tuple(group)
            group = []
        group.append(op)
    if group:
        yield tuple(group)


def _together(graph: Graph, a: Op, b: Op) -> bool:
    if is_once(a) != is_once(b):
        return False
    if is_computed(a) and is_computed(b):
        same = a.attrs["segment"] == b.attrs["segment"]
        same = same and graph.is_repeated(a) == graph.is_repeated(b)
        return same and graph.devices(a) == graph.devices(b)
    if a.attrs.get("segment") != b.attrs.get("segment"):
        return False
    return a.kind == b.kind and a.kind in _IN_ONE


_IN_ONE = {"read", "parameter", "record", *TOGETHER.values()}
"""Kinds of which several make one statement."""


def _unit(
    graph: Graph,
    node: str,
    group: tuple[Op, ...],
    at: int,
    here: set[str],
    last_use: dict[str, int],
    once: bool,
) -> Unit:
    if not is_computed(group[0]):
        return Unit(group, computed=False, once=once)
    made = {value.name for op in group for value in op.results}
    inputs = dict.fromkeys(
        name
        for op in group
        for name in taken(graph, node, op)
        if name not in made and name in here
    )
    outputs = tuple(
        value.name
        for op in group
        for value in op.results
        if last_use.get(value.name, -1) > at
    )
    return Unit(group, True, once, tuple(inputs), outputs)


def purpose(unit: Unit, evaluating: bool) -> str:
    """What to call a segment: by what is in it."""
    backward = any(op.is_gradient for op in unit.ops)
    forward = any(
        not (op.is_gradient or is_conversion(op.kind) or is_optimizers(op.kind))
        and op.kind not in ("accumulate", "constant")
        for op in unit.ops
    )
    if evaluating:
        return "predict" if forward else "prepare"
    if forward and backward:
        return "forward_backward"
    if forward:
        return "forward"
    return "backward" if backward else "combine"
