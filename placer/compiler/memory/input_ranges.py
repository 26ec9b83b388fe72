"""Finds the valid range of each input that ops use as an index."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from placer.compiler.graph.declared import declared
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.if_training import is_metric, is_output, resolve_if_training
from placer.compiler.graph.model import Model
from placer.compiler.graph.structural_ops import OUTPUT
from placer.place.types import TensorType
from placer.plan.settings.data.columns import Range

_REARRANGED = frozenset(
    {"reshape", "flatten", "transpose", "squeeze", "expand_dims", "tile", "concat"}
    | {"stop_gradient"}
)
"""Kinds whose result contains all elements of each operand. A slice contains only some, so
its use as an index does not restrict the other elements."""


def limit_inputs(model: Model) -> Model:
    """Return the model with the valid ranges of index inputs, which readers check."""
    graph, evaluation, prediction = model.graph, model.eval, None
    ranges = index_ranges(graph, 0, _is_training_root)
    train = structs.replace(model.train, ranges=ranges)
    if evaluation is not None:
        ranges = index_ranges(graph, 1, is_metric)
        evaluation = structs.replace(evaluation, ranges=ranges)
    if graph.of_kind(OUTPUT):
        ranges = index_ranges(graph, 1, is_output)
        prediction = structs.replace(
            model.eval or model.train,
            shuffle=False,
            remainder="keep",
            stream=None,
            ranges=ranges,
        )
    return replace(model, train=train, eval=evaluation, prediction=prediction)


def index_ranges(
    graph: Graph, operand_index: int, is_root: Callable[[Op], bool]
) -> dict[str, Range]:
    """Return the range of each input that is used as an index.

    Only the root ops and the ops they need count. If several ops use an input, their ranges
    are intersected.

    Args:
        graph: the graph before the first pass.
        operand_index: which operand replaces each `if_training`.
        is_root: whether an op is a root.
    """
    ranges: dict[str, Range] = {}
    # By value: the inputs whose elements it contains.
    inputs: dict[str, frozenset[str]] = {}
    for op in resolve_if_training(graph, operand_index, is_root):
        if "input" in op.attrs:
            inputs[op.result.name] = frozenset({op.attrs["input"]})
        if not op.is_computed:
            continue
        if _keeps_values(op, graph):
            inputs[op.result.name] = frozenset[str]().union(
                *(inputs.get(name, frozenset()) for name in op.operands)
            )
        declaration, types, attrs = declared(graph, op)
        for index, bound in declaration.index_bounds(types, attrs).items():
            is_more = bound.padding not in range(bound.size)
            padding = bound.padding if is_more else None
            valid = Range(0, bound.size - 1, op.name, op.kind, padding)
            if bound.scores is not None:
                layer = _layer_of_size(graph, op.operands[bound.scores], bound.size)
                valid = structs.replace(valid, is_label=True, layer=layer)
            for name in inputs.get(op.operands[index], ()):
                ranges[name] = _intersect(ranges.get(name, valid), valid)
    return ranges


def _intersect(first: Range, second: Range) -> Range:
    """Return the values valid for two ops, and the op that allows less."""
    pair = (first, second)
    small, large = sorted(
        pair, key=lambda r: (r.high, r.padding is not None, not r.is_label)
    )
    padding = small.padding
    if padding is None or padding == large.padding or 0 <= padding <= large.high:
        return small
    return structs.replace(small, padding=None)


def _layer_of_size(graph: Graph, scores: str, size: int) -> str | None:
    """Return the op whose key `size` is the number of scores, if any."""
    # Ops after the layer, such as relu, may keep the number of scores.
    while (op := graph.producers.get(scores)) is not None and op.is_computed:
        if graph.tensor_type(scores).shape[-1:] != (size,):
            return None
        attrs = declared(graph, op)[0].attrs
        if any(attr.name == "size" and attr.type is int for attr in attrs):
            return op.name
        if not op.operands:
            return None
        scores = op.operands[0]
    return None


def _is_training_root(op: Op) -> bool:
    return op.kind in ("record", "minimize")


def _keeps_values(op: Op, graph: Graph) -> bool:
    """Whether the op's result contains every element of its operands, unchanged."""
    if op.kind != "cast":
        return op.kind in _REARRANGED
    before = _bits(graph.tensor_type(op.operands[0]))
    after = _bits(graph.tensor_type(op.result.name))
    return before is not None and after is not None and before <= after


def _bits(kind: TensorType) -> int | None:
    """Return the bits of the largest value of an integer type; None for other types."""
    match = re.fullmatch(r"(u?)int(\d+)", kind.dtype)
    return int(match[2]) - (not match[1]) if match else None
