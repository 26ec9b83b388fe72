"""Finds the role of a value in the model, such as parameter or gradient, and its op in the
spec."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import (
    ROW_ESTIMATE,
    is_conversion,
    is_optimizer_part,
)


def origin(graph: Graph, name: str) -> tuple[Op, int]:
    """Return the op that computes or reads a value, and the index of the result.

    Copies, messages and conversions are followed back to the original value.
    """
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

    A gradient op belongs to its forward op, and a part of a composite to the composite. An
    op that sends or stores a value belongs to the op that computes the value. The ops of
    an optimizer keep their names, since optimizers have no names.
    """
    if is_optimizer_part(op.kind) or op.kind == "optimizer":
        return op.name
    name = op.operands[0] if op.is_gradient or not op.results else op.name
    return name.partition(".")[0]


def parameter_of(graph: Graph, name: str) -> str | None:
    """Return the parameter, or the block of a parameter, that a value is a copy of; None
    for other values."""
    if name not in graph.producers:
        return None  # the forward op is not in this graph
    op, _ = origin(graph, name)
    if op.kind in ("parameter", "local_parameter"):
        return op.name
    if op.kind == "assemble":  # the whole parameter, from its blocks
        block, _ = origin(graph, op.operands[0])
        return str(block.attrs["whole"])
    return None


def differentiated(graph: Graph, name: str) -> str | None:
    """Return the value that a gradient belongs to; None for values without one."""
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
    """Return the roles of values as text, such as "activations and gradients"."""
    words = dict.fromkeys(_word(graph, name) for name in names)
    if [*words] == ["gradients"] and all(map(partial(_is_of_activation, graph), names)):
        return "activation gradients"
    return " and ".join(words)


def _is_of_activation(graph: Graph, gradient: str) -> bool:
    """Whether a gradient belongs to a value that an op of the spec computes."""
    value = differentiated(graph, gradient)
    return (
        value is not None
        and value in graph.producers
        and parameter_of(graph, value) is None
        and _word(graph, value) == "activations"
    )


_GRADIENTS = ("clip_part", ROW_ESTIMATE, "accumulate", "sum_by_key")
_NORMS = {
    "parameters": "parameter",
    "gradients": "gradient",
    "squared gradient norms": "gradient",
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
    if op.is_gradient or op.kind in _GRADIENTS:
        return "gradients"
    if op.kind in ("sum_of_squares", "exact_squares", "rounded_sum"):
        return f"squared {_NORMS.get(_word(graph, op.operands[0]), 'update')} norms"
    if is_optimizer_part(op.kind):
        return "trust ratios" if op.kind == "trust_ratio" else "clip scales"
    return "inputs" if op.kind == "read" else "activations"
