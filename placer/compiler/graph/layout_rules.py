"""Layout rules: the layouts that a computed op needs, and the layouts of its results.

The layout pass passes the layouts in which operands arrive, and converts the operands
to the layouts that the op needs. The verifier passes the layouts in the graph, which
must equal the needed layouts.

Partial values. A P value is a sum over nodes. An op that is linear in an operand can be
applied to each part of the sum, so it takes P and gives P. Every other op needs the
whole sum, R. An op such as `add` is linear only in several operands together, so it
needs P for all of them: an R operand would be counted once per node.

Cotangents. The gradient of a value is summed over all its uses. A replicated value is
used on each node, so its gradient is the sum over nodes: R has the dual P. A partial
value enters one sum, and each part has the cotangent of the sum: P has the dual R. Rows
of a split value have their own gradients: S has the dual S.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from placer.compiler.graph.declared import declared
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import COMPUTED_ON_RANGES
from placer.ops.declaration import BatchRule
from placer.place.layouts import Layout
from placer.place.types import ResidualType

L = TypeVar("L")

DUAL: Mapping[Layout, Layout] = {"R": "P", "P": "R", "S": "S", "F": "P"}
"""The layout of a cotangent, by the value's layout. Values in ranges are used as R."""

Layouts = tuple[Layout, ...]
LayoutSignature = tuple[Layouts, Layouts]
"""The layouts of an op's operands, and of its results."""


def replicated_signature(op: Op) -> LayoutSignature:
    """Return the signature in which all layouts are R, as on a single node."""
    return uniform_signature(op, "R")


def uniform_signature(op: Op, layout: L) -> tuple[tuple[L, ...], tuple[L, ...]]:
    """Return the signature in which all layouts are the same."""
    return (layout,) * len(op.operands), (layout,) * len(op.results)


def forward_signature(graph: Graph, op: Op, have: Sequence[Layout]) -> LayoutSignature:
    """Return the signature of a forward op on several nodes. `have` are the layouts in
    which its operands arrive."""
    # `hold` returns its first operand, and only waits for the second.
    if op.kind == "hold":
        return tuple(have), tuple(have[:1])
    declaration, types, attrs = declared(graph, op)
    if declaration.own_part and "S" not in have:
        return tuple(have), (declaration.own_part,) * len(op.results)
    if "S" in have:
        rule = declaration.batch_rule(types, attrs)
        if rule != "whole":
            need: Layouts = tuple("S" if each.has_rows else "R" for each in types)
            return need, _row_result_layouts(op, rule)
    elif "P" in have:
        partial = {i for i, layout in enumerate(have) if layout == "P"}
        if any(types[i].dtype == "float16" for i in partial):
            # A part of a sum can overflow float16 although the sum does not.
            return replicated_signature(op)
        for group in declaration.linear(types, attrs):
            if partial <= set(group):
                need = tuple("P" if i in group else "R" for i in range(len(types)))
                gives: Layouts = tuple(
                    "R" if isinstance(value.type, ResidualType) else "P"
                    for value in op.results
                )
                return need, gives
    return replicated_signature(op)


def gradient_signature(
    graph: Graph, op: Op, needed: Layouts, layouts: Mapping[str, Layout]
) -> LayoutSignature:
    """Return the signature of a gradient op on several nodes.

    The saved operands have the layouts that the forward op needs. The cotangents have
    the duals of the forward results' layouts. The results have the duals of the needed
    layouts.

    Args:
        graph: The graph of the op.
        op: The gradient op.
        needed: The layouts that the forward op needs.
        layouts: Layouts by name, which include the forward results.
    """
    forward = graph.producers[op.operands[0]]
    tensors = forward.tensors
    cotangents = op.attrs.get("cotangents", range(len(tensors)))
    saved = op.operands[1 : len(op.operands) - len(cotangents)]
    position = {name: i for i, name in enumerate(forward.operands)}
    if position.keys() >= {*saved}:
        saved_layouts = tuple(needed[position[name]] for name in saved)
    else:  # Recomputed operands have other names than in the forward op.
        declaration, types, attrs = declared(graph, forward)
        saved_layouts = tuple(needed[i] for i in declaration.saves(types, attrs))
    cotangent_layouts = tuple(DUAL[layouts[tensors[i].name]] for i in cotangents)
    gives = tuple(DUAL[needed[i]] for i in op.attrs["wrt"])
    return (layouts[op.operands[0]], *saved_layouts, *cotangent_layouts), gives


def accumulation_signature(op: Op, layouts: Mapping[str, Layout]) -> LayoutSignature:
    """Return the signature of a sum of gradients on several nodes.

    Operands and result have the dual of the layout of the differentiated value. A sum
    of one place (`part`), which another place adds up, keeps a common layout of its
    operands: nothing is converted before the sum.
    """
    layout = DUAL[layouts.get(op.attrs["of"], "R")]
    have = {layouts[name] for name in op.operands}
    if op.attrs.get("part") and len(have) == 1:
        (layout,) = have
    return uniform_signature(op, layout)


def flat_signature(op: Op, have: Sequence[Layout]) -> LayoutSignature | None:
    """Return the signature of an op on several nodes that reads or writes ranges.
    Returns None for any other op. `have` are the layouts in which its operands arrive.
    """
    gives_ranges = any(value.flat is not None for value in op.results)
    if not gives_ranges and "F" not in have:
        return None
    match op.kind:
        case "reduce_scatter":
            return ("P",), ("F",)
        case "all_gather":
            return ("F",), ("R",)
        case "sum_of_squares":
            return tuple("F" for _ in op.operands), ("P",)
    if not op.structure.on_ranges and op.kind not in COMPUTED_ON_RANGES:
        return None
    # Operands: a parameter, a value of its type, then scalars such as a scale.
    count = 1 if op.kind == "clip_value" else 2
    need: Layouts = tuple("F" if i < count else "R" for i in range(len(op.operands)))
    return need, tuple("F" for _ in op.results)


def _row_result_layouts(op: Op, rule: BatchRule) -> Layouts:
    """Return the layouts of results computed from split rows: S for the residual and
    results with rows, P for sums over rows."""
    return tuple(
        "S"
        if isinstance(value.type, ResidualType)
        or (rule == "rows" and value.type.has_rows)
        else "P"
        for value in op.results
    )
