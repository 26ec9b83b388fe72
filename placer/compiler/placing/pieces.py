"""Pieces: the parts of jitted functions that a cost file names and times.

A piece is what one movable group computes in one function: its forward ops, its gradients, or
both. It is named by its ops, their attributes and types, and the kind of its devices, so that
equal layers share an entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from placer.compiler.graph.declared import declared_attrs
from placer.compiler.graph.flops import FlopsCache
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import (
    CLIP_PART,
    ROW_ESTIMATE,
    ROW_SHARE,
    is_conversion,
    is_optimizer_part,
)
from placer.compiler.graph.text import print_attribute
from placer.compiler.schedule.costs import task_cost, task_rows
from placer.place.types import TensorType

_WITHOUT_EFFECT = frozenset({"stream"})
"""Attributes that change no time: the number of a random stream."""
_ELEMENTWISE = frozenset({"accumulate", CLIP_PART, ROW_ESTIMATE, ROW_SHARE})


class Piece(NamedTuple):
    """What one movable group computes in one run of a function.

    Attributes:
        group: the name of the group.
        name: the name of its entry in a cost file.
        parts: the entries that a cost file may have instead: those of its forward ops and
            of its gradients, or those of its single ops.
        rows: the rows of the run; 1 if no operand has rows.
        flops: the declared FLOPs of the run.
        ops: the number of ops.
    """

    group: str
    name: str
    parts: tuple[tuple[str, ...], ...]
    rows: int
    flops: int
    ops: int

    def on(self, device: str) -> Piece:
        """Return the piece on another kind of device."""

        def renamed(name: str) -> str:
            return f"{device} {name.partition(' ')[2]}"

        parts = tuple([tuple(map(renamed, names)) for names in self.parts])
        return self._replace(name=renamed(self.name), parts=parts)


def pieces_of(
    graph: Graph,
    ops: Iterable[Op],
    node: str,
    groups: Mapping[str, str],
    known: FlopsCache,
) -> list[Piece]:
    """Return the pieces of a function, in the order of their first ops.

    Ops that only add, pad or scale values are in no piece: see `elementwise_elements`.

    Args:
        graph: the graph after the last pass.
        ops: the ops of one unit.
        node: the node that runs them.
        groups: the group of each forward op by name; an op that is missing is a group of
            its own.
        known: the known FLOPs.
    """
    of_group: dict[str, list[Op]] = {}
    for op in ops:
        if is_timed(op):
            name = group_of(graph, op, groups)
            of_group.setdefault(name, []).append(op)
    return [_piece(graph, node, *each, known) for each in of_group.items()]


def group_of(graph: Graph, op: Op, groups: Mapping[str, str]) -> str:
    """Return the group of a forward op or of its gradient op."""
    forward = graph.producers[op.operands[0]] if op.is_gradient else op
    name = forward.name
    if forward.attrs.get("again", False):  # named `h1.again`, or `h1.again.2`
        name = name.partition(".again")[0]
    return groups.get(name, name)


def is_timed(op: Op) -> bool:
    """Whether an op is a forward op of the spec or its gradient op."""
    return (
        op.is_computed
        and op.kind != "constant"
        and op.kind not in _ELEMENTWISE
        and not is_conversion(op.kind)
        and not is_optimizer_part(op.kind)
    )


def elementwise_elements(graph: Graph, ops: Iterable[Op], node: str) -> int:
    """Return the elements of the operands of a function's ops that are in no piece."""
    return sum(
        _elements(graph, name, task_rows(graph, op, node))
        for op in ops
        if op.is_computed and not is_timed(op)
        for name in op.operands
    )


def _elements(graph: Graph, name: str, rows: int) -> int:
    kind = graph.values[name].type
    if not isinstance(kind, TensorType) or kind.is_keyed:
        return 0
    return prod(kind.sizes(graph.batch, rows))


def _piece(
    graph: Graph, node: str, group: str, ops: Sequence[Op], known: FlopsCache
) -> Piece:
    devices = graph.cluster.device_ids(ops[0].known_place)
    device = graph.devices(ops[0]).partition(":")[0]
    halves = [
        [op for op in ops if op.is_gradient == is_gradient]
        for is_gradient in (False, True)
    ]
    texts = [f"{device} {_text(graph, half)}" for half in halves if half]
    single = [f"{device} {_text(graph, (op,))}" for op in ops]
    rows = max(
        (task_rows(graph, op, node) for op in ops if _has_rows(graph, op)), default=1
    )
    return Piece(
        group,
        f"{device} {_text(graph, ops)}",
        (tuple(texts), tuple(single)),
        -(-rows // len(devices)),
        sum(task_cost(graph, op, node, known) for op in ops) // len(devices),
        len(ops),
    )


def _has_rows(graph: Graph, op: Op) -> bool:
    return any(
        isinstance(kind, TensorType) and kind.has_batch
        for kind in _operand_types(graph, op)
    )


def _operand_types(graph: Graph, op: Op) -> list[object]:
    forward = graph.producers[op.operands[0]] if op.is_gradient else op
    return [graph.values[name].type for name in forward.operands]


def _text(graph: Graph, ops: Sequence[Op]) -> str:
    return "; ".join(_op_text(graph, op) for op in ops)


def _op_text(graph: Graph, op: Op) -> str:
    """Return an op with its attributes and types: `fc.grad(float32[batch, 64], …)`."""
    forward = graph.producers[op.operands[0]] if op.is_gradient else op
    attrs = {
        name: value
        for name, value in sorted(declared_attrs(forward).items())
        if name not in _WITHOUT_EFFECT
    }
    if op.is_gradient:
        attrs["wrt"] = op.attrs["wrt"]
    elif op.has_residual:
        attrs["residual"] = True
    text = f"{op.kind}({', '.join(map(str, _operand_types(graph, op)))})"
    return f"{text} {print_attribute(attrs)}" if attrs else text
