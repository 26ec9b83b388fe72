"""differentiate: add the backward of every forward op, and the updates it feeds.

Needs the graph as written. Afterwards each op on a way from a trainable parameter to
the loss also gives a residual, `%h1.res`, and stands beside one gradient op `fc.grad`
that takes that residual, the operands its declaration saves, and the cotangent of its
result (R5). Gradients of several uses are summed by `accumulate`, in program order.
`minimize` is replaced by clipping, one update op per parameter, and its store.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from placer import ops
from placer.errors import GraphError
from placer.graph.graph import Graph, Op, Value
from placer.graph.structure import STRUCTURAL
from placer.graph.types import ResidualType, TensorType
from placer.ops.attributes import complete


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
    backward = tuple(_backward(graph, loss, active, contributions))
    trained = [op for op in graph.of_kind("parameter") if op.name in contributions]
    forward = [
        _with_residual(graph, op) if id(op) in active else op
        for op in graph.ops
        if op.kind != "minimize"
    ]
    return graph.with_ops([*forward, *backward, *_updates(graph, minimize, trained)])


def _active_operands(graph: Graph, loss: str) -> dict[int, tuple[int, ...]]:
    """For each op (by id) on a way from a trainable parameter to the loss, the operand
    indices through which the gradient flows on."""
    reaches_loss = {loss}
    for op in reversed(graph.ops):
        if any(value.name in reaches_loss for value in op.results):
            reaches_loss.update(op.operands)
    depends = {
        op.name
        for op in graph.of_kind("parameter")
        if "group" in op.attrs and op.name in reaches_loss
    }
    active: dict[int, tuple[int, ...]] = {}
    for op in graph.ops:
        if op.kind in STRUCTURAL or not ops.find(op.kind).differentiable:
            continue
        wrt = tuple(i for i, name in enumerate(op.operands) if name in depends)
        if wrt and any(value.name in reaches_loss for value in op.results):
            active[id(op)] = wrt
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
    parts = declaration.residuals(types, complete(declaration, op.attrs))
    residual = Value(f"{op.name}.res", _residual_type(tuple(parts)))
    return op.of(op.operands, (*op.results, residual))


@lru_cache
def _residual_type(parts: tuple[TensorType, ...]) -> ResidualType:
    """Equal types are one object: few are."""
    return ResidualType(parts)


def _backward(
    graph: Graph,
    loss: str,
    active: dict[int, tuple[int, ...]],
    contributions: dict[str, tuple[tuple[int, _Use], ...]],
) -> Iterator[Op]:
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
                yield Op("accumulate", parts, (total,), source=op.source)
        wrt = active.get(id(op))
        if wrt:
            yield _gradient(graph, op, wrt, gradients)


def _gradient(
    graph: Graph, op: Op, wrt: Sequence[int], gradients: dict[tuple[int, int], str]
) -> Op:
    declaration = ops.find(op.kind)
    types = [graph.tensor(name) for name in op.operands]
    saved = declaration.saves(types, complete(declaration, op.attrs))
    return Op(
        f"{op.kind}.grad",
        (
            f"{op.name}.res",
            *(op.operands[i] for i in saved),
            *(f"{value.name}.grad" for value in op.results),
        ),
        tuple(Value(gradients[id(op), i], types[i]) for i in wrt),
        {**op.attrs, "wrt": tuple(wrt)},
        source=op.source,
    )


def _updates(graph: Graph, minimize: Op, trained: Sequence[Op]) -> Iterator[Op]:
    optimizers = {op.attrs["group"]: op for op in graph.of_kind("optimizer")}
    scales = yield from _clipping(minimize, optimizers, trained)
    for parameter in trained:
        group = parameter.attrs["group"]
        optimizer = optimizers[group]
        name, new = parameter.name, f"{parameter.name}.new"
        scale = (scales[group],) if group in scales else ()
        yield Op(
            optimizer.attrs["rule"],
            (name, f"{name}.grad", *scale),
            (Value(new, parameter.result.type),),
            {"group": group},
            optimizer.place,
            parameter.source,
        )
        yield Op("store", (name, new), source=parameter.source)


def _clipping(
    minimize: Op, optimizers: dict[int, Op], trained: Sequence[Op]
) -> Generator[Op, None, dict[int, str]]:
    """Yield the ops that clip by global norm; return each group's scale, by name."""
    own = {g: op.attrs["clip"] for g, op in optimizers.items() if "clip" in op.attrs}
    everywhere = minimize.attrs.get("clip")
    if own and everywhere:
        raise GraphError(
            "both train.clip and an optimizer's own clip are given",
            span=optimizers[next(iter(own))].source,
            hint="keep one: train.clip is one norm over all optimizers",
        )
    scales: dict[int, str] = {}
    if everywhere:
        yield from _clip("clip", everywhere, trained, minimize)
        scales = dict.fromkeys(optimizers, "clip.scale")
    for group, clip in own.items():
        mine = [op for op in trained if op.attrs["group"] == group]
        if mine:
            yield from _clip(f"clip{group}", clip, mine, optimizers[group])
            scales[group] = f"clip{group}.scale"
    return scales


def _clip(
    name: str, clip: dict[str, float], trained: Sequence[Op], by: Op
) -> Iterator[Op]:
    first = trained[0].result.type
    assert isinstance(first, TensorType)
    scalar = TensorType(first.dtype)
    square, scale = Value(f"{name}.square", scalar), Value(f"{name}.scale", scalar)
    gradients = tuple(f"{op.name}.grad" for op in trained)
    yield Op("sum_of_squares", gradients, (square,), source=by.source)
    max_norm = float(clip["global_norm"])
    yield Op(
        "clip_scale", (square.name,), (scale,), {"max_norm": max_norm}, source=by.source
    )
