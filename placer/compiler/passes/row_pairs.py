"""Finds broadcasts that pair all rows by mistake: [batch, 1] and [batch] are broadcast to
[batch, batch]."""

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
    """Return a warning, with position and hint, for each op that broadcasts the rows of an
    operand against the rows of another one, if a loss or a metric depends on it.

    Such an op aligns the rows of an operand with a later dimension of the other operand,
    whose size is 1. An operand of the same rank, such as [1, batch], gives no warning: its
    shape says that pairs are meant.

    Args:
        graph: the graph of a model, before the passes.

    Returns:
        The texts in program order, without repetitions.
    """
    types = {value.name: value.type for op in graph.ops for value in op.results}
    roots = frozenset({"minimize", "record"})
    texts: dict[str, None] = {}
    for op in needed_ops(graph.ops, lambda op: op.kind in roots):
        if op.kind in _BROADCASTING and (pair := _find_pair(op, types)):
            texts[_warn(op, pair, types)] = None
    return list(texts)


def _find_pair(op: Op, types: Mapping[str, ValueType]) -> tuple[str, str] | None:
    """Return two operands of an op whose rows are in different dimensions of the result:
    the one with its rows first, and the one of lower rank."""
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
    """Return the text of the warning about two operands of an op."""
    first, second = pair
    wide, narrow = types[first], types[second]
    assert isinstance(wide, TensorType)
    assert isinstance(narrow, TensorType)
    rank = wide.rank - narrow.rank
    same = _show(narrow.shape[:1] + (1,) * rank + narrow.shape[1:])
    pairs = _show((1,) * rank + narrow.shape)
    message = (
        f"{op.kind} '{op.name}' combines each row of '{first}' {wide} with all rows of"
        f" '{second}' {narrow}: its result is {op.result.type}"
    )
    hint = (
        f"to combine equal rows, reshape '{second}' to {same}; if all pairs are meant,"
        f" reshape it to {pairs}"
    )
    return str(PlacerError(message, span=op.source, hint=hint))


def _show(shape: tuple[object, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
