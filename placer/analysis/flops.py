"""Declared FLOPs of an op."""

from __future__ import annotations

from placer import ops
from placer.config import optimizers
from placer.graph.graph import Graph, Op
from placer.graph.kinds import declared_attrs, is_direction, is_update
from placer.ops.attributes import complete

Known = dict[tuple[object, ...], int]
"""What was asked for: ops of the same kind, attributes and types cost the same."""


def flops(graph: Graph, op: Op, rows: int, known: Known) -> int:
    """Declared FLOPs of an op, which is no entry, exit or message, over some rows."""
    if is_direction(op.kind):
        return 0  # the update's figure is for both halves
    if is_update(op.kind):
        each = optimizers.find(op.kind).flops
        return each * graph.tensor(op.operands[0]).numel()
    forward = graph.producers[op.operands[0]] if op.is_gradient else op
    given = declared_attrs(forward.attrs)
    wrt = op.attrs.get("wrt", ())
    types = [graph.tensor(name) for name in forward.operands]
    key = op.kind, rows, wrt, repr(given) if given else "", *types
    if key not in known:
        declaration = ops.find(forward.kind)
        full = [kind.at(graph.batch, rows) for kind in types]
        attrs = complete(declaration, given)
        if op.is_gradient:
            known[key] = declaration.grad_flops(full, attrs, wrt)
        else:
            known[key] = declaration.flops(full, attrs)
    return known[key]
