"""What a value of the graph is in the model: a parameter, a gradient, an activation;
and of which op of the spec."""

from __future__ import annotations

from collections.abc import Sequence

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import (
    ROW_ESTIMATE,
    is_conversion,
    is_optimizer_part,
)


def origin(graph: Graph, name: str) -> tuple[Op, int]:
    """Return the op that first computes or reads a value, and the index of the value in
    its results: copies, messages and conversions are followed back."""
    while True:
        op = graph.producers[name]
        index = graph.result_indices[name]
        if op.received_edge is not None:
            name = graph.sends[op.received_edge].operands[index]
        elif op.structure.copies:
            name = op.operands[index]
        elif is_conversion(op.kind) or op.structure.reduces:
            name = op.operands[0]
        else:
            return op, index


def spec_op(graph: Graph, op: Op) -> str:
    """Return the name of the op in the spec that an op of the graph belongs to.

    It is that of the forward op for a gradient op, of the composite for one of its
    parts, of the op that computes the value for an op that sends or stores one. The ops
    of an optimizer, which has no name, keep their own.
    """
    if is_optimizer_part(op.kind) or op.kind == "optimizer":
        return op.name
    name = op.operands[0] if op.is_gradient or not op.results else op.name
    return name.partition(".")[0]


def parameter_of(graph: Graph, name: str) -> str | None:
    """Return the parameter, or the block of one, that a value is a copy of; None for any
    other value."""
    if name not in graph.producers:
        return None  # of a forward op that is not in this graph
    op, _ = origin(graph, name)
    if op.kind in ("parameter", "local_parameter"):
        return op.name
    if op.kind == "assemble":  # the whole parameter, from its blocks
        block, _ = origin(graph, op.operands[0])
        return str(block.attrs["whole"])
    return None


def differentiated(graph: Graph, name: str) -> str | None:
    """Return the value that a gradient is the cotangent of; None for other values."""
    op, index = origin(graph, name)
    if op.kind in ("cut", "clip_part", ROW_ESTIMATE):
        return differentiated(graph, op.operands[index])
    if op.kind == "accumulate":
        of = op.attrs.get("of")
        return None if of is None else str(of)
    if not op.is_gradient:
        return None
    forward = graph.producers[op.operands[0]]
    wrt: tuple[int, ...] = op.attrs["wrt"]
    return forward.operands[wrt[index]]


def describe(graph: Graph, names: Sequence[str]) -> str:
    """Return what values are, in words: "parameters", "activations and gradients"."""
    return " and ".join(dict.fromkeys(_word(graph, name) for name in names))


_NORMS = {
    "parameters": "parameter",
    "gradients": "gradient",
    "gradient norms": "gradient",
}
"""The norms of values: the squares of gradients may be added up at several nodes."""


def _word(graph: Graph, name: str) -> str:
    if parameter_of(graph, name) is not None:
        return "parameters"
    op, _ = origin(graph, name)
    if op.kind == "distinct_keys":
        return "keys"
    if op.kind == "distributed_lookup_table":
        return "rows"
    if op.kind == "cut":
        op, _ = origin(graph, op.operands[0])
    if op.kind == "delta":
        return "deltas"
    if op.is_gradient or op.kind in ("clip_part", ROW_ESTIMATE, "accumulate"):
        return "gradients"
    if op.kind in ("sum_of_squares", "exact_squares", "rounded_sum"):
        return f"{_NORMS.get(_word(graph, op.operands[0]), 'update')} norms"
    if is_optimizer_part(op.kind):
        return "trust ratios" if op.kind == "trust_ratio" else "clip scales"
    return "inputs" if op.kind == "read" else "activations"
