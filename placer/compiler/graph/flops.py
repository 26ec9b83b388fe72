"""Counts the FLOPs of ops, as declared."""

from __future__ import annotations

from placer import ops
from placer.compiler.graph.declared import declared_attrs
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.keyed import count_keys
from placer.compiler.graph.structural_ops import is_update, is_update_direction
from placer.ops.attributes import complete
from placer.place.types import TensorType
from placer.plan.settings.training import optimizers


class FlopsCache:
    """Results of `op_flops`, shared by equal ops.

    Keyed by op, and by everything that the FLOPs depend on except the number of rows.
    """

    def __init__(self) -> None:
        self.of_op: dict[Op, dict[int, int]] = {}
        self.of_signature: dict[tuple[object, ...], dict[int, int]] = {}


def op_flops(graph: Graph, op: Op, rows: int, cache: FlopsCache) -> int:
    """Return the declared FLOPs of an op for `rows` local rows. The op is a computed
    op, an update or an update direction. The declaration of the forward op also counts
    its gradient op."""
    by_rows = flops_by_rows(graph, op, cache)
    if rows not in by_rows:
        by_rows[rows] = _compute_flops(graph, op, rows)
    return by_rows[rows]


def flops_by_rows(graph: Graph, op: Op, cache: FlopsCache) -> dict[int, int]:
    """Return the known FLOPs of an op by the number of rows. Equal ops share the object."""
    by_rows = cache.of_op.get(op)
    if by_rows is None:
        by_rows = cache.of_op[op] = cache.of_signature.setdefault(
            _signature(graph, op), {}
        )
    return by_rows


def _signature(graph: Graph, op: Op) -> tuple[object, ...]:
    forward = graph.producers[op.operands[0]] if op.is_gradient else op
    attrs = {} if op.structure.update else declared_attrs(forward)
    types = []
    for name in forward.operands:
        kind = graph.tensor_type(name)
        types.append(_sized(graph, name, 1) if kind.is_keyed else kind)
    # The FLOPs of an optax optimizer are those of its group.
    group = op.attrs["group"] if op.kind == optimizers.OPTAX else None
    return op.kind, op.attrs.get("wrt", ()), repr(attrs) if attrs else "", group, *types


def _compute_flops(graph: Graph, op: Op, rows: int) -> int:
    if is_update_direction(op.kind):
        return 0  # The rule of the update counts the FLOPs of both phases; see below.
    if is_update(op.kind):
        if op.kind == optimizers.OPTAX:
            optimizer = graph.optimizers[op.attrs["group"]]
            per_element: int = optimizer.attrs["transformation"].flops
        else:
            per_element = optimizers.RULES[op.kind].flops
        return per_element * _sized(graph, op.operands[1], rows).numel()
    forward = graph.producers[op.operands[0]] if op.is_gradient else op
    declaration = ops.find(forward.kind)
    types = [_sized(graph, name, rows) for name in forward.operands]
    attrs = complete(declaration, declared_attrs(forward))
    if op.is_gradient:
        return declaration.grad_flops(types, attrs, op.attrs.get("wrt", ()))
    return declaration.flops(types, attrs)


def _sized(graph: Graph, name: str, rows: int) -> TensorType:
    """Return the type of a value for `rows` local rows. Keys count as all distinct. A
    whole sparse table counts as one row: only its columns matter for lookups."""
    kind = graph.tensor_type(name)
    if kind.is_keyed:
        is_table = graph.producers[name].kind == "sparse_table"
        count = 1 if is_table else count_keys(graph, name, rows)
        return TensorType(kind.dtype, (count, *kind.shape[1:]))
    return kind.with_batch(graph.batch, rows)
