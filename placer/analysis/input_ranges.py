"""The range of valid values of each input that ops use as an index."""

from __future__ import annotations

import re
from dataclasses import replace

from msgspec import structs

from placer.analysis.declared import declared
from placer.analysis.if_training import is_metric, resolve_if_training
from placer.config.columns import Range
from placer.graph.graph import Graph, Op
from placer.graph.model import Model
from placer.types import TensorType

_REARRANGED = frozenset(
    {"reshape", "flatten", "transpose", "squeeze", "expand_dims", "tile", "concat"}
    | {"stop_gradient"}
)
"""Kinds whose result has all elements of each operand. A slice has only some of them,
so an op that uses a slice as an index does not restrict the others."""


def limit_inputs(model: Model) -> Model:
    """Return the model with the valid ranges of the inputs that its ops use as indices,
    which readers check."""
    evaluation = model.eval and structs.replace(
        model.eval, ranges=index_ranges(model.graph, evaluating=True)
    )
    ranges = index_ranges(model.graph, evaluating=False)
    train = structs.replace(model.train, ranges=ranges)
    return replace(model, train=train, eval=evaluation)


def index_ranges(graph: Graph, *, evaluating: bool) -> dict[str, Range]:
    """Return the range of each input that a step, or an evaluation, uses as an index.

    `graph` is the graph before the first pass. If several ops use an input, the
    smallest range counts.
    """
    ranges: dict[str, Range] = {}
    # Of each value: the inputs that it rearranges.
    inputs: dict[str, frozenset[str]] = {}
    is_root = is_metric if evaluating else _is_training_root
    for op in resolve_if_training(graph, int(evaluating), is_root):
        if "input" in op.attrs:
            inputs[op.result.name] = frozenset({op.attrs["input"]})
        if not op.is_computed:
            continue
        if _keeps_values(op, graph):
            inputs[op.result.name] = frozenset[str]().union(
                *(inputs.get(name, frozenset()) for name in op.operands)
            )
        declaration, types, attrs = declared(graph, op)
        for index, size in declaration.index_bounds(types, attrs).items():
            for name in inputs.get(op.operands[index], ()):
                if name not in ranges or size <= ranges[name].high:
                    ranges[name] = Range(low=0, high=size - 1, op=op.name, kind=op.kind)
    return ranges


def _is_training_root(op: Op) -> bool:
    return op.kind in ("record", "minimize")


def _keeps_values(op: Op, graph: Graph) -> bool:
    """Whether the op's result has every element of its operands, unchanged."""
    if op.kind != "cast":
        return op.kind in _REARRANGED
    before = _bits(graph.tensor_type(op.operands[0]))
    after = _bits(graph.tensor_type(op.result.name))
    return before is not None and after is not None and before <= after


def _bits(kind: TensorType) -> int | None:
    """The bits of the largest value of an integer type; None for other types."""
    match = re.fullmatch(r"(u?)int(\d+)", kind.dtype)
    return int(match[2]) - (not match[1]) if match else None
