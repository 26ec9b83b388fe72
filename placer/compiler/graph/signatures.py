"""The layouts that any op needs for its operands, and the layouts of its results.

The pass `layout` passes the layouts in which operands arrive, the verifier the layouts
in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.keyed import keyed_signature
from placer.compiler.graph.layout_rules import (
    Layouts,
    LayoutSignature,
    accumulation_signature,
    flat_signature,
    gradient_signature,
    replicated_signature,
)
from placer.place.layouts import Layout


def signature(
    graph: Graph,
    op: Op,
    layouts: Mapping[str, Layout],
    needed: Callable[[Op], Layouts],
    forward: Callable[[Op], LayoutSignature],
) -> LayoutSignature:
    """Return the layouts that an op needs for its operands, and the layouts of its results.

    On a single node every layout is R.

    Args:
        graph: The graph of the op.
        op: Any op except a conversion.
        layouts: Layouts of the op's operands and all earlier values.
        needed: Returns the layouts that a forward op needs, for its gradient op.
        forward: Returns the signature of a forward op on several nodes.
    """
    have = tuple(layouts[name] for name in op.operands)
    keyed = keyed_signature(graph, op, have)
    if keyed is not None:
        return keyed
    if op.structure.layout == "parts":
        parts: Layouts = tuple("P" for _ in have)
        return parts, ("R",)
    if op.structure.moves:
        return have, ("R" if op.result.flat is None else "F",)
    flat = flat_signature(op, have)
    if flat is not None:
        return flat
    if len(graph.nodes(op)) == 1:
        return replicated_signature(op)
    if not op.is_computed:
        return _structural_signature(graph, op, have)
    if op.is_gradient:
        of_forward = needed(graph.producers[op.operands[0]])
        return gradient_signature(graph, op, of_forward, layouts)
    if op.kind == "accumulate":
        return accumulation_signature(op, layouts)
    return forward(op)


def _structural_signature(graph: Graph, op: Op, have: Layouts) -> LayoutSignature:
    match op.structure.layout:
        case "operands" if have:
            return have, have[:1] * len(op.results)
        case "complete":
            return tuple("R" if each == "P" else each for each in have), ()
        case "rows":
            types = (graph.tensor_type(value.name) for value in op.results)
            return (), tuple("S" if each.has_rows else "R" for each in types)
    # Kinds with "gathered" need replicas too. Each microbatch has rows of every node,
    # so the local rows of all microbatches are not a contiguous part of the batch.
    return replicated_signature(op)
