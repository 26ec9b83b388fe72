"""Groups the ops of one node into units, each emitted as one statement or function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.needed_ops import needed_ops
from placer.compiler.graph.structural_ops import is_conversion, is_optimizer_part
from placer.compiler.schedule.node_classes import NodeClasses
from placer.compiler.schedule.served import served_ops, serves_workers
from placer.place.layouts.moved_pieces import Conversion
from placer.plan.hooks import HookName


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive ops of a node, emitted as one statement or one jitted function.

    Attributes:
        ops: the ops.
        computed: whether the unit is a segment, emitted as a jitted function.
        once: whether the unit runs before the first batch of an evaluation.
        inputs: (segment) the values that the function uses.
        outputs: (segment) the results that a later unit of the node uses.
    """

    ops: tuple[Op, ...]
    computed: bool
    once: bool
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoweredGraph:
    """A graph after the last pass, ready to be emitted.

    Attributes:
        graph: the graph of a training step, an evaluation or a prediction.
        rows: the rows of every batch, or None if the last batch may be shorter.
        hook: the program function that runs the graph.
    """

    graph: Graph
    rows: int | None
    hook: HookName

    @property
    def has_batches(self) -> bool:
        """Whether the hook runs over all batches instead of one step."""
        return self.hook != "step"

    @cached_property
    def node_classes(self) -> NodeClasses:
        """The nodes, grouped by the ops that they run."""
        return NodeClasses([self.graph])

    def units_on(self, node: str) -> tuple[Unit, ...]:
        """Return the units of a node, empty if the node runs no op.

        Nodes of a class share their units.
        """
        first = self.node_classes.representative(node)
        units = self._units.get(first)
        if units is None:
            units = self._units[first] = units_on(self.graph, first)
        return units

    @cached_property
    def _units(self) -> dict[str, tuple[Unit, ...]]:
        return {}

    def units_of_hook(self, node: str) -> tuple[Unit, ...]:
        """Return the units that a node's hook runs, without those for worker messages."""
        served = self._served_on(node)
        if not served:
            return self.units_on(node)
        others = {op for ops in served.values() for op in ops}
        first = self.node_classes.representative(node)
        ops = used_ops(self.graph, first)
        names = {name for op in ops if op not in others for name in op.operands}
        used = [op for op in ops if op not in others or _is_read_by(op, names)]
        return group_units(self.graph, first, used)

    def units_of_messages(self, node: str) -> dict[int, tuple[Unit, ...]]:
        """Return the units that a server runs for a worker's message, by edge."""
        first = self.node_classes.representative(node)
        return {
            edge: group_units(self.graph, first, ops)
            for edge, ops in self._served_on(node).items()
        }

    def serves_workers(self, node: str) -> bool:
        """Whether the node serves worker messages as they arrive."""
        return serves_workers(self.graph, self.node_classes.representative(node))

    def _served_on(self, node: str) -> dict[int, tuple[Op, ...]]:
        return served_ops(self.graph, self.node_classes.representative(node))


def _is_read_by(op: Op, names: set[str]) -> bool:
    """Whether an op reads a parameter that the hook also uses."""
    # The hook and the message units read parameters separately.
    return op.kind == "parameter" and op.name in names


def units_on(graph: Graph, node: str) -> tuple[Unit, ...]:
    """Group a node's ops into units, empty if the node runs no op.

    The graph must have segments.
    """
    return group_units(graph, node, used_ops(graph, node))


def group_units(graph: Graph, node: str, ops: Sequence[Op]) -> tuple[Unit, ...]:
    """Group some of a node's ops, in program order, into units."""
    groups = [tuple(group) for _, group in groupby(ops, partial(_unit_key, graph))]
    local = {value.name for op in ops for value in op.results}
    last_use: dict[str, int] = {}
    for i, group in enumerate(groups):
        for op in group:
            for name in operands_on(graph, node, op):
                last_use[name] = i
    return tuple(
        _make_unit(graph, node, group, i, local, last_use)
        for i, group in enumerate(groups)
    )


def used_ops(graph: Graph, node: str) -> list[Op]:
    """Return the ops with an effect on a node, and the ops that these need."""
    ops = [op for op in graph.ops_on(node) if not op.structure.directive]
    operands_of = partial(operands_on, graph, node)
    return needed_ops(ops, lambda op: op.structure.effect, operands_of)


def operands_on(graph: Graph, node: str, op: Op) -> tuple[str, ...]:
    """Return the operands that an op needs on a node.

    A conversion that brings the node no piece needs none: its result there is zeros.
    """
    if not is_conversion(op.kind):
        return op.operands
    layouts = graph.layout(op.operands[0]), graph.layout(op.name)
    sources = graph.nodes(graph.producers[op.operands[0]])
    workers = graph.cluster.workers
    conversion = Conversion(layouts, sources, graph.nodes(op), graph.batch, workers)
    return op.operands if conversion.pieces_for(node) else ()


def _unit_key(graph: Graph, op: Op) -> tuple[object, ...]:
    """Return the key that consecutive ops of one unit share."""
    if op.is_computed:
        same: object = graph.is_repeated(op), graph.devices(op)
    else:
        same = op.kind if op.structure.grouped else op
    return op.is_once, op.attrs.get("segment"), same


def _make_unit(
    graph: Graph,
    node: str,
    group: tuple[Op, ...],
    number: int,
    local: set[str],
    last_use: dict[str, int],
) -> Unit:
    once = group[0].is_once
    if not group[0].is_computed:
        return Unit(group, computed=False, once=once)
    own = {value.name for op in group for value in op.results}
    inputs = dict.fromkeys(
        name
        for op in group
        for name in operands_on(graph, node, op)
        if name not in own and name in local
    )
    outputs = tuple(
        value.name
        for op in group
        for value in op.results
        if last_use.get(value.name, -1) > number
    )
    return Unit(group, True, once, tuple(inputs), outputs)


_FORWARD = {"evaluate": "eval_forward", "predict": "predict_forward"}


def purpose_of(ops: Sequence[Op], hook: HookName) -> str:
    """Return the name of a segment's function.

    In a training step: `forward`, `backward`, `forward_backward`, or `combine` for
    conversions and updates. In an evaluation: `eval_forward` or `prepare`. In a
    prediction: `predict_forward` or `prepare`.
    """
    backward = any(op.is_gradient for op in ops)
    forward = any(
        not (op.is_gradient or is_conversion(op.kind) or is_optimizer_part(op.kind))
        and op.kind not in ("accumulate", "constant")
        for op in ops
    )
    if hook != "step":
        return _FORWARD[hook] if forward else "prepare"
    if forward and backward:
        return "forward_backward"
    if forward:
        return "forward"
    return "backward" if backward else "combine"
