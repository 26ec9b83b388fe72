"""differentiate: add the backward of every forward op, and the updates it feeds.

Needs the graph as written. Afterwards each op on a way from a trainable parameter to
the loss also gives a residual, `%h1.res`, and stands beside one gradient op `fc.grad`
that takes that residual, the operands its declaration saves, and the cotangents of the
results that the loss needs (R5). Gradients of several uses are summed by `accumulate`,
in program order. A place of `minimize` goes to the gradients of ops that have none.
`minimize` is replaced by what `updates` writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from placer import ops
from placer.errors import GraphError
from placer.graph.graph import Graph, Op, Value
from placer.graph.kinds import STRUCTURAL, declared_attrs
from placer.ops.attributes import complete
from placer.passes.updates import updates
from placer.types import ResidualType, TensorType


def differentiate(graph: Graph) -> Graph:
    recipes = graph.of_kind("minimize")
    if not recipes:
        return graph
    minimize = recipes[0]
    loss = minimize.operands[0]
    if graph.producers[loss].kind == "parameter":
        raise GraphError(
            f"'{loss}' is a parameter: an op must compute what is minimized",
            span=minimize.source,
        )
    active = _active_operands(graph, loss)
    contributions = _contributions(graph, active)
    backward = tuple(_backward(graph, minimize, active, contributions))
    trained = [op for op in graph.of_kind("parameter") if op.name in contributions]
    _check_groups(graph, loss, trained)
    forward = [
        _with_residual(graph, op) if id(op) in active else op
        for op in graph.ops
        if op.kind != "minimize"
    ]
    return graph.with_ops([*forward, *backward, *updates(graph, minimize, trained)])


def _check_groups(graph: Graph, loss: str, trained: Sequence[Op]) -> None:
    """Raise GraphError at an optimizer that would update nothing."""
    busy = {op.attrs["group"] for op in trained}
    for recipe in graph.of_kind("optimizer"):
        if (group := recipe.attrs["group"]) in busy:
            continue
        parameters = graph.of_kind("parameter")
        first, *rest = [p.name for p in parameters if p.attrs.get("group") == group]
        more = f" and {len(rest)} more" if rest else ""
        raise GraphError(
            f"this optimizer trains nothing: '{loss}' does not depend on "
            f"'{first}'{more}",
            span=recipe.source,
            hint="minimize what they lead to, or give them trainable: false",
        )


def _active_operands(graph: Graph, loss: str) -> dict[int, tuple[int, ...]]:
    """For each op (by id) on a way from a trainable parameter to the loss, the operand
    indices through which the gradient flows on."""
    depends = {op.name for op in graph.of_kind("parameter") if "group" in op.attrs}
    through: dict[int, tuple[int, ...]] = {}
    for op in graph.ops:
        if op.kind in STRUCTURAL or not (declared := ops.find(op.kind)).differentiable:
            continue
        wrt = tuple(
            i
            for i, name in enumerate(op.operands)
            if name in depends and i not in declared.constant
        )
        if wrt:
            through[id(op)] = wrt
            depends.update(
                v.name
                for v in op.results
                if isinstance(v.type, TensorType) and v.type.is_float
            )
    if loss not in depends:
        raise GraphError(
            f"'{loss}' depends on no trainable parameter: there is nothing to minimize",
            span=graph.producers[loss].source,
        )
    active: dict[int, tuple[int, ...]] = {}
    wanted = {loss}
    for op in reversed(graph.ops):
        if id(op) in through and any(value.name in wanted for value in op.results):
            active[id(op)] = through[id(op)]
            wanted.update(op.operands[i] for i in active[id(op)])
    return active


@dataclass(frozen=True, slots=True)
class _Use:
    """One use of a value: operand `index` of an op, whose gradient is `gradient`."""

    index: int
    gradient: str


def _contributions(
    graph: Graph, active: dict[int, tuple[int, ...]]
) -> dict[str, tuple[tuple[int, _Use], ...]]:
    """For each value, its uses that give gradients, in program order, by op id."""
    uses: dict[str, list[tuple[int, int]]] = {}
    for op in graph.ops:
        for index in active.get(id(op), ()):
            uses.setdefault(op.operands[index], []).append((id(op), index))
    return {
        name: tuple(
            (op, _Use(index, f"{name}.grad" if len(found) == 1 else f"{name}.grad.{i}"))
            for i, (op, index) in enumerate(found)
        )
        for name, found in uses.items()
    }


def _with_residual(graph: Graph, op: Op) -> Op:
    declaration = ops.find(op.kind)
    types = [graph.tensor(name) for name in op.operands]
    attrs = complete(declaration, declared_attrs(op.attrs))
    parts = declaration.residuals(types, attrs)
    residual = Value(f"{op.name}.res", _residual_type(tuple(parts)))
    return op.of(op.operands, (*op.results, residual))


@lru_cache
def _residual_type(parts: tuple[TensorType, ...]) -> ResidualType:
    """Equal types are one object: few are."""
    return ResidualType(parts)


def _backward(
    graph: Graph,
    minimize: Op,
    active: dict[int, tuple[int, ...]],
    contributions: dict[str, tuple[tuple[int, _Use], ...]],
) -> Iterator[Op]:
    (loss,) = minimize.operands
    kind = graph.tensor(loss)
    seed = {"value": 1.0, "dtype": kind.dtype, "shape": ()}
    yield Op("constant", (), (Value(f"{loss}.grad", kind),), seed)
    gradients = {
        (op, use.index): use.gradient
        for uses in contributions.values()
        for op, use in uses
    }
    for op in reversed(graph.ops):
        for value in op.results:
            uses = contributions.get(value.name, ())
            if len(uses) > 1:
                parts = tuple(use.gradient for _, use in uses)
                total = Value(f"{value.name}.grad", value.type)
                attrs = {"of": value.name}
                yield Op("accumulate", parts, (total,), attrs, source=op.source)
        wrt = active.get(id(op))
        if wrt:
            needed = [
                i
                for i, value in enumerate(op.results)
                if value.name == loss or value.name in contributions
            ]
            gradient = _gradient(graph, op, wrt, needed, gradients)
            yield gradient if op.place is not None else gradient.at(minimize.place)


def _gradient(
    graph: Graph,
    op: Op,
    wrt: Sequence[int],
    needed: Sequence[int],
    gradients: dict[tuple[int, int], str],
) -> Op:
    declaration = ops.find(op.kind)
    types = [graph.tensor(name) for name in op.operands]
    given = declared_attrs(op.attrs)
    saved = declaration.saves(types, complete(declaration, given))
    attrs = {**given, "wrt": tuple(wrt)}
    if len(needed) < len(op.results):
        attrs["cotangents"] = tuple(needed)
    return Op(
        f"{op.kind}.grad",
        (
            f"{op.name}.res",
            *(op.operands[i] for i in saved),
            *(f"{op.results[i].name}.grad" for i in needed),
        ),
        tuple(Value(gradients[id(op), i], types[i]) for i in wrt),
        attrs,
        source=op.source,
    )
