"""What layout a computed op needs of each operand, and what layouts its results have.

These are the batch rules of design 4. `lay_out` asks with the layouts in which operands
come, and converts them to what is needed; the verifier asks with those that stand in
the graph, which need nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placer import ops
from placer.graph.graph import Op
from placer.graph.kinds import declared_attrs
from placer.layouts import Layout
from placer.ops.attributes import complete
from placer.ops.declaration import Rule
from placer.types import TensorType

DUAL: Mapping[Layout, Layout] = {"R": "P", "P": "R", "S": "S"}
"""The layout of a cotangent: of R is P, of P is R, of S is S."""

Layouts = tuple[Layout, ...]
Ways = tuple[Layouts, Layouts]
"""What is needed of the operands, and what the results have."""


def replicated(op: Op) -> Ways:
    """Everything whole, as on a single node."""
    return alike("R", len(op.operands)), alike("R", len(op.results))


def by_rule(op: Op, types: Sequence[TensorType], have: Sequence[Layout]) -> Ways:
    """Of a forward op on several nodes, by the types of its operands and the layouts
    in which they come."""
    if op.kind == "hold":  # as it is, whatever it waits for
        return tuple(have), tuple(have[:1])
    declaration = ops.find(op.kind)
    attrs = complete(declaration, declared_attrs(op.attrs))
    tensors = [v for v in op.results if isinstance(v.type, TensorType)]
    residuals = len(op.results) - len(tensors)
    if "S" in have:
        rule = declaration.batch(types, attrs)
        if rule != "whole":
            need: Layouts = tuple("S" if kind.has_rows else "R" for kind in types)
            return need, _of_rows(op, rule) + alike("S", residuals)
    elif "P" in have:
        partial = {i for i, layout in enumerate(have) if layout == "P"}
        if any(types[i].dtype == "float16" for i in partial):
            return replicated(op)  # a part may overflow where the sum does not
        for group in declaration.linear(types, attrs):
            if partial <= set(group):
                need = tuple("P" if i in group else "R" for i in range(len(types)))
                given = alike("P", len(tensors)) + alike("R", residuals)
                return need, given
    return replicated(op)


def of_gradient(
    op: Op,
    forward: Op,
    types: Sequence[TensorType],
    needed: Layouts,
    layouts: Mapping[str, Layout],
) -> Ways:
    """Of a gradient op on several nodes: it needs what its forward op `needed`, and the
    dual of what that gave. `types` are those of the forward op's operands, `layouts`
    those of its results."""
    tensors = [v for v in forward.results if isinstance(v.type, TensorType)]
    of_loss = op.attrs.get("cotangents", range(len(tensors)))
    saved = op.operands[1 : len(op.operands) - len(of_loss)]
    position = {name: i for i, name in enumerate(forward.operands)}
    if position.keys() >= {*saved}:
        of_saved = tuple(needed[position[name]] for name in saved)
    else:  # some were made again, under names of their own
        of_saved = tuple(needed[i] for i in _saved(forward, types))
    of_cotangents = tuple(DUAL[layouts[tensors[i].name]] for i in of_loss)
    gives = tuple(DUAL[needed[i]] for i in op.attrs["wrt"])
    return (layouts[op.operands[0]], *of_saved, *of_cotangents), gives


def _saved(forward: Op, types: Sequence[TensorType]) -> Sequence[int]:
    declaration = ops.find(forward.kind)
    return declaration.saves(
        types, complete(declaration, declared_attrs(forward.attrs))
    )


def of_accumulation(op: Op, layouts: Mapping[str, Layout]) -> Ways:
    """Of a sum of gradients on several nodes: the dual of the value's own layout. A part
    of it, that goes elsewhere afterwards, stays as it is made where all is made alike."""
    made = DUAL[layouts.get(op.attrs["of"], "R")]
    have = {layouts[name] for name in op.operands}
    if op.attrs.get("part") and len(have) == 1:
        (made,) = have
    return alike(made, len(op.operands)), (made,)


def alike(layout: Layout, count: int) -> Layouts:
    return (layout,) * count


def _of_rows(op: Op, rule: Rule) -> Layouts:
    """The layouts of the results that ops make of split rows: what has rows of its own
    is split, the rest is a sum over the rows."""
    return tuple(
        "S" if rule == "rows" and value.type.has_rows else "P"
        for value in op.results
        if isinstance(value.type, TensorType)
    )
