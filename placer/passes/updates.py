"""What `differentiate` puts in place of `minimize`: clipping, updates and stores.

Every op here says its optimizer by `group`. A rule that needs the norms of whole
parameters between its halves (lamb, lars) is a `direction`, a `trust_ratio` of the two
norms, and the update by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from placer import ops
from placer.config import optimizers
from placer.errors import GraphError
from placer.graph.graph import Graph, Op, Value
from placer.graph.kinds import is_direction, is_update
from placer.ops.attributes import condense
from placer.types import TensorType


def updates(graph: Graph, minimize: Op, trained: Sequence[Op]) -> Iterator[Op]:
    """The ops from the gradients of the trained parameters to their new values."""
    recipes = {op.attrs["group"]: op for op in graph.of_kind("optimizer")}
    clips = {g: op.attrs["clip"] for g, op in recipes.items() if "clip" in op.attrs}
    everywhere = minimize.attrs.get("clip")
    if clips and everywhere:
        raise GraphError(
            "both train.clip and an optimizer's own clip are given",
            span=recipes[next(iter(clips))].source,
            hint="keep one: train.clip is one norm over all optimizers",
        )
    scales: dict[str, str] = {}
    if everywhere and "global_norm" in everywhere:
        name = _free(graph, "clip")
        yield from _scale(name, everywhere["global_norm"], trained, minimize)
        scales = {op.name: f"{name}.scale" for op in trained}
    elif everywhere:
        clips = dict.fromkeys(recipes, everywhere)
    for group, clip in clips.items():
        mine = [op for op in trained if op.attrs["group"] == group]
        if "global_norm" in clip and mine:
            name, by = _free(graph, f"clip{group}"), recipes[group]
            yield from _scale(name, clip["global_norm"], mine, by)
            scales |= {op.name: f"{name}.scale" for op in mine}
    for parameter in trained:
        recipe = recipes[parameter.attrs["group"]]
        clip = clips.get(parameter.attrs["group"], {})
        yield from _update(parameter, recipe, clip, scales.get(parameter.name))


def _update(
    parameter: Op, recipe: Op, clip: Mapping[str, float], scale: str | None
) -> Iterator[Op]:
    name, kind = parameter.name, parameter.result.type
    rule = recipe.attrs["rule"]
    gradient = f"{name}.grad"
    if "value" in clip:
        clipped = Value(f"{gradient}.clipped", kind)
        limit = {"limit": float(clip["value"])}
        yield Op("clip_value", (gradient,), (clipped,), limit, source=recipe.source)
        gradient = clipped.name
    if "norm" in clip:
        scale = f"{name}.clip.scale"
        yield from _scale(f"{name}.clip", clip["norm"], (parameter,), recipe)
    attrs = {"group": recipe.attrs["group"]}
    if not parameter.attrs.get("decay", True):
        attrs["decay"] = False
    place, source = recipe.place, parameter.source
    scaled = () if scale is None else (scale,)
    if optimizers.find(rule).direction:
        direction, half = f"{name}.direction", f"{rule}.direction"
        taken, made = (name, gradient, *scaled), (Value(direction, kind),)
        yield Op(half, taken, made, attrs, place, source)
        yield from _ratio(parameter, recipe)
        gradient, scaled = direction, (f"{name}.ratio",)
    new = f"{name}.new"
    taken, made = (name, gradient, *scaled), (Value(new, kind),)
    yield Op(rule, taken, made, attrs, place, source)
    yield Op("store", (name, new), source=source)


def _free(graph: Graph, wish: str) -> str:
    """The wished name, or the first like it under which the model has no parameter: a
    layer of its own may be called so."""
    name, i = wish, 2
    while f"{name}.scale" in graph.values or f"{name}.square" in graph.values:
        name, i = f"{wish}_{i}", i + 1
    return name


def _scale(name: str, max_norm: float, trained: Sequence[Op], by: Op) -> Iterator[Op]:
    """What the gradients are multiplied by so that their norm is at most `max_norm`."""
    gradients = [f"{op.name}.grad" for op in trained]
    square = _square(f"{name}.square", gradients, trained, by)
    yield square
    scale = Value(f"{name}.scale", square.result.type)
    limit = {"max_norm": float(max_norm)}
    yield Op("clip_scale", (square.name,), (scale,), limit, source=by.source)


def _ratio(parameter: Op, recipe: Op) -> Iterator[Op]:
    """How far a step goes, by the norms of the whole parameter and its direction."""
    name, direction = parameter.name, f"{parameter.name}.direction"
    of_value = _square(f"{name}.square", [name], (parameter,), recipe)
    of_direction = _square(f"{direction}.square", [direction], (parameter,), recipe)
    yield of_value
    yield of_direction
    rule = recipe.attrs["rule"]
    known = optimizers.find(rule).hyper
    given = {key: value for key, value in recipe.attrs.items() if key in known}
    coefficient, eps = optimizers.trust(rule, given)
    attrs = {"coefficient": coefficient, "eps": eps}
    attrs = condense(ops.find("trust_ratio"), attrs)
    squares = (of_value.name, of_direction.name)
    ratio = Value(f"{name}.ratio", of_value.result.type)
    yield Op("trust_ratio", squares, (ratio,), attrs, source=recipe.source)


def _square(name: str, of: Sequence[str], parameters: Sequence[Op], by: Op) -> Op:
    """The sum of squares of values that have the types of their parameters."""
    types = [p.result.type for p in parameters if isinstance(p.result.type, TensorType)]
    (kind,) = ops.find("sum_of_squares").infer(types, {})
    square = Value(name, kind)
    return Op("sum_of_squares", tuple(of), (square,), source=by.source)


def owners(graph: Graph) -> dict[str, str]:
    """The parameter that each value is for: itself, its gradient, its direction."""
    found: dict[str, str] = {}
    for op in reversed(graph.ops):
        if is_update(op.kind) or is_direction(op.kind):
            found[op.operands[0]] = found[op.operands[1]] = op.operands[0]
        elif op.kind == "clip_value" and op.name in found:
            found[op.operands[0]] = found[op.name]
    return found
