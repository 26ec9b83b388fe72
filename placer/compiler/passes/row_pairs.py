"""Finds accidental broadcasts over pairs of rows: [batch, 1] with [batch] gives [batch,
batch]."""

from __future__ import annotations

from collections.abc import Mapping

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.needed_ops import needed_ops
from placer.errors import PlacerError
from placer.ops.elementwise.broadcasting import binary_rule
from placer.ops.registry import DECLARATIONS
from placer.place.types import TensorType, ValueType

_BROADCASTING = frozenset(
    kind for kind, each in DECLARATIONS.items() if each.batch_rule is binary_rule
)


def find_row_pairs(graph: Graph) -> list[str]:
    """Return a warning for each op that broadcasts rows against rows.

    Such an op aligns the rows of one operand with a later dimension of size 1 of the other.
    Ops without influence on a loss or a metric are ignored. Operands of equal rank, such as
    [1, batch], give no warning, since the shape shows that pairs are intended.

    Args:
        graph: the graph of a model, before the passes.

    Returns:
        The warnings with position and hint, in program order, without repetitions.
    """
    types = {value.name: value.type for op in graph.ops for value in op.results}
    roots = frozenset({"minimize", "record"})
    texts: dict[str, None] = {}
    for op in needed_ops(graph.ops, lambda op: op.kind in roots):
        if op.kind in _BROADCASTING and (pair := _find_pair(op, types)):
            texts[_warn(op, pair, types)] = None
    return list(texts)


def _find_pair(op: Op, types: Mapping[str, ValueType]) -> tuple[str, str] | None:
    """Return two operands whose rows end up in different dimensions of the result."""
    # The first operand has its rows in the first dimension; the second has a lower
    # rank.
    shaped = {name: types[name] for name in op.operands}
    rows = [
        (name, each)
        for name, each in shaped.items()
        if isinstance(each, TensorType) and each.has_rows
    ]
    for first, wide in rows:
        for second, narrow in rows:
            axis = wide.rank - narrow.rank
            if axis > 0 and wide.shape[axis] == 1:
                return first, second
    return None


def _warn(op: Op, pair: tuple[str, str], types: Mapping[str, ValueType]) -> str:
    """Return the warning about two operands of an op."""
    first, second = pair
    wide, narrow = types[first], types[second]
    assert isinstance(wide, TensorType)
    assert isinstance(narrow, TensorType)
    rank = wide.rank - narrow.rank
    same = _show(narrow.shape[:1] + (1,) * rank + narrow.shape[1:])
    pairs = _show((1,) * rank + narrow.shape)
    message = (
        f"{op.kind} '{op.name}' combines each row of '{first}' {wide} with all rows of"
        f" '{second}' {narrow}, so its result is {op.result.type}"
    )
    hint = (
        f"reshape '{second}' to {same} to combine matching rows, or to {pairs} if you"
        " intend all pairs"
    )
    return str(PlacerError(message, span=op.source, hint=hint))


def _show(shape: tuple[object, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
