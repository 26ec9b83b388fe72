"""The declared FLOPs of ops."""

from __future__ import annotations

from placer import ops
from placer.config import optimizers
from placer.graph.graph import Graph, Op
from placer.graph.kinds import declared_attrs, is_update, is_update_direction
from placer.ops.attributes import complete

FlopsCache = dict[tuple[object, ...], int]
"""Results of `op_flops`, by what they depend on: the kind of an op, its attributes, the
types of its operands and the number of rows."""


def op_flops(graph: Graph, op: Op, rows: int, cache: FlopsCache) -> int:
    """Return the declared FLOPs of an op for `rows` local rows.

    The op is computed, an update or an update direction. Gradient ops are counted by
    the declaration of their forward op.
    """
    if is_update_direction(op.kind):
        return 0  # the FLOPs that a rule declares include both phases; see below
    if is_update(op.kind):
        per_element = optimizers.find(op.kind).flops
        return per_element * graph.tensor_type(op.operands[0]).numel()
    forward = graph.producers[op.operands[0]] if op.is_gradient else op
    given_attrs = declared_attrs(forward.attrs)
    wrt = op.attrs.get("wrt", ())
    types = [graph.tensor_type(name) for name in forward.operands]
    key = op.kind, rows, wrt, repr(given_attrs) if given_attrs else "", *types
    if key not in cache:
        declaration = ops.find(forward.kind)
        local_types = [each.with_batch(graph.batch, rows) for each in types]
        attrs = complete(declaration, given_attrs)
        if op.is_gradient:
            cache[key] = declaration.grad_flops(local_types, attrs, wrt)
        else:
            cache[key] = declaration.flops(local_types, attrs)
    return cache[key]
