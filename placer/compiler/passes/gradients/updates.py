"""Creates the ops that replace `minimize`: clipping, updates and stores.

The attribute `group` of an update is the number of its optimizer. A two-phase rule such as
lamb becomes three ops. `lamb.direction` computes the update direction, `trust_ratio` the
ratio of the norms of parameter and direction, and `lamb` applies the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from placer import ops
from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.stored_bytes import rule_of
from placer.compiler.graph.structural_ops import is_update, is_update_direction
from placer.errors import GraphError
from placer.ops.attributes import condense
from placer.place.types import TensorType
from placer.plan.settings.training import optimizers
from placer.plan.settings.training.update_modes import Geo, Mode, name_of


def update_ops(graph: Graph, minimize: Op, trained: Sequence[Op]) -> Iterator[Op]:
    """Yield the ops from the gradients of trained parameters to their new values.

    Raises GraphError if both `train` and an optimizer clip gradients.
    """
    optimizer_ops = graph.optimizers
    clips = {
        group: op.attrs["clip"]
        for group, op in optimizer_ops.items()
        if "clip" in op.attrs
    }
    common_clip = minimize.attrs.get("clip")
    modes = graph.modes
    if clips and common_clip:
        raise GraphError(
            "both train.clip and the clip of an optimizer are set",
            span=optimizer_ops[next(iter(clips))].source,
            hint="keep one of them; train.clip is a single norm over all optimizers",
        )
    for group, op in optimizer_ops.items():
        if bound := _clip_of_chain(op, common_clip):
            clips[group] = {"global_norm": bound}
    scales: dict[str, str] = {}
    if common_clip and any(modes.values()):
        if "global_norm" in common_clip and len(optimizer_ops) > 1:
            raise _one_norm_error(graph, trained)
        clips = dict.fromkeys(optimizer_ops, common_clip)
    elif common_clip and "global_norm" in common_clip:
        name = _unused_name(graph, "clip")
        yield from _clip_scale(name, common_clip["global_norm"], trained, minimize)
        scales = {op.name: f"{name}.scale" for op in trained}
    elif common_clip:
        clips = dict.fromkeys(optimizer_ops, common_clip)
    for group, clip in clips.items():
        of_group = [op for op in trained if op.attrs["group"] == group]
        if modes[group] is not None and of_group:
            yield from _clip_parts(of_group, clip, optimizer_ops[group])
        elif "global_norm" in clip and of_group:
            name = _unused_name(graph, f"clip{group}")
            optimizer = optimizer_ops[group]
            yield from _clip_scale(name, clip["global_norm"], of_group, optimizer)
            scales |= {op.name: f"{name}.scale" for op in of_group}
    for parameter in trained:
        group = parameter.attrs["group"]
        optimizer, clip = optimizer_ops[group], clips.get(group, {})
        _check_rules(parameter, optimizer, modes[group])
        if clip and modes[group] is not None:
            gradient = f"{parameter.name}.grad.clipped"
            yield from _update(parameter, optimizer, {}, None, gradient)
        else:
            yield from _update(parameter, optimizer, clip, scales.get(parameter.name))


def _clip_of_chain(
    optimizer: Op, common_clip: Mapping[str, float] | None
) -> float | None:
    """Return the bound of `clip_by_global_norm` at the top of an optax optimizer."""
    # The passes compute this norm: the blocks of a parameter may be on several nodes.
    transformation = optimizer.attrs.get("transformation")
    if transformation is None or transformation.clip is None:
        return None
    for clip, what in (
        (optimizer.attrs.get("clip"), "the clip of this optimizer"),
        (common_clip, "train.clip"),
    ):
        if clip:
            raise GraphError(
                f"both {what} and {transformation.fn} clip the gradients",
                span=optimizer.source,
                hint=f"keep one of them: remove {what}, or optax.clip_by_global_norm",
            )
    bound: float = transformation.clip
    return bound


def _one_norm_error(graph: Graph, trained: Sequence[Op]) -> GraphError:
    """Return the error for one norm over several groups with asynchronous ones among them."""
    # The message names each asynchronous group by its first parameter.
    groups: dict[int, list[str]] = {}
    for parameter in trained:
        groups.setdefault(parameter.attrs["group"], []).append(parameter.name)
    modes = {}
    for group, names in groups.items():
        if graph.modes[group] is not None:
            mode = name_of(graph.optimizers[group].attrs["update"])
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            modes[group] = f"'update: {mode}' of '{names[0]}'{more}"
    return GraphError(
        f"train.clip is one norm over {len(groups)} optimizers, which needs synchronous"
        f" workers, not {', '.join(modes.values())}",
        span=graph.optimizers[next(iter(modes))].source,
        hint="give each optimizer its own clip, or use 'update: sync' for all",
    )


def _update(
    parameter: Op,
    optimizer: Op,
    clip: Mapping[str, float],
    scale: str | None,
    gradient: str = "",
) -> Iterator[Op]:
    """Yield the ops that update and store one parameter."""
    # `clip`: the clipping by value or norm. `scale`: the name of a scalar factor of the
    # gradient. `gradient`: the name of the gradient, `NAME.grad` by default.
    name, value_type = parameter.name, parameter.result.type
    rule = optimizer.attrs["rule"]
    gradient = gradient or f"{name}.grad"
    if "value" in clip:
        clipped = Value(f"{gradient}.clipped", value_type)
        limit = {"limit": float(clip["value"])}
        yield Op("clip_value", (gradient,), (clipped,), limit, source=optimizer.source)
        gradient = clipped.name
    if "norm" in clip:
        scale = f"{name}.clip.scale"
        yield from _clip_scale(f"{name}.clip", clip["norm"], (parameter,), optimizer)
    attrs = {"group": optimizer.attrs["group"]}
    if not parameter.attrs.get("decay", True):
        attrs["decay"] = False
    place, source = optimizer.place, parameter.source
    scales = () if scale is None else (scale,)
    if optimizers.is_two_phase(rule):
        direction = f"{name}.direction"
        operands, results = (name, gradient, *scales), (Value(direction, value_type),)
        yield Op(f"{rule}.direction", operands, results, attrs, place, source)
        yield from _trust_ratio(parameter, optimizer)
        gradient, scales = direction, (f"{name}.ratio",)
    new = f"{name}.new"
    operands, results = (name, gradient, *scales), (Value(new, value_type),)
    yield Op(rule, operands, results, attrs, place, source)
    yield Op("store", (name, new), source=source)


def _check_rules(parameter: Op, optimizer: Op, mode: Mode | None) -> None:
    """Raise GraphError if a parameter does not support the rule of its optimizer, or of
    the outer optimizer."""
    name, own = parameter.name, optimizer.attrs["rule"]
    is_geo = isinstance(mode, Geo)
    by_row = own != optimizers.OPTAX and optimizers.RULES[own].row_slot
    if by_row and parameter.kind != "sparse_table":
        use = f"use {optimizers.nearest_dense(own)}"
        raise GraphError(
            f"parameter '{name}': '{own}' works only with sparse tables, since it keeps"
            " one number for each row",
            span=optimizer.source,
            hint=use if is_geo else f"apply it to sparse tables only, or {use}",
        )
    rules = [(own, f"'{own}'")]
    if isinstance(mode, Geo) and mode.outer is not None:
        outer = mode.outer["op"]
        rules.append((outer, f"the outer optimizer '{outer}'"))
    for rule, what in rules:
        if mistake := optimizers.check_init(rule, parameter.attrs["init"]):
            raise GraphError(
                f"parameter '{name}': {what} {mistake.message}",
                span=parameter.source,
                hint=f"write - {{match: \"{name}\", init: zeros}} in 'parameters'",
            )


def _clip_parts(
    trained: Sequence[Op], clip: Mapping[str, float], optimizer: Op
) -> Iterator[Op]:
    """Yield the op with which each asynchronous worker clips its own gradients."""
    gradients = tuple(f"{op.name}.grad" for op in trained)
    clipped = tuple(Value(f"{op.name}.grad.clipped", op.result.type) for op in trained)
    limits = {name: float(limit) for name, limit in clip.items()}
    yield Op("clip_part", gradients, clipped, limits, source=optimizer.source)


def _unused_name(graph: Graph, wish: str) -> str:
    """Return `wish`, or `wish_2`, `wish_3`, … if a layer of the model has the name."""
    name, i = wish, 2
    while f"{name}.scale" in graph.values or f"{name}.square" in graph.values:
        name, i = f"{wish}_{i}", i + 1
    return name


def _clip_scale(
    name: str, max_norm: float, trained: Sequence[Op], optimizer: Op
) -> Iterator[Op]:
    """Yield the ops that compute a factor for gradients, which limits their common norm to
    `max_norm`."""
    gradients = [f"{op.name}.grad" for op in trained]
    square = _sum_of_squares(f"{name}.square", gradients, trained, optimizer)
    yield square
    scale = Value(f"{name}.scale", square.result.type)
    limit = {"max_norm": float(max_norm)}
    yield Op("clip_scale", (square.name,), (scale,), limit, source=optimizer.source)


def _trust_ratio(parameter: Op, optimizer: Op) -> Iterator[Op]:
    """Yield the ops of a two-phase rule's trust ratio."""
    # The trust ratio depends on norms of the whole parameter and its update direction.
    name, direction = parameter.name, f"{parameter.name}.direction"
    of_value = _sum_of_squares(f"{name}.square", [name], (parameter,), optimizer)
    of_direction = _sum_of_squares(
        f"{direction}.square", [direction], (parameter,), optimizer
    )
    yield of_value
    yield of_direction
    coefficient, eps = rule_of(optimizer.attrs).trust_ratio
    attrs = {"coefficient": coefficient, "eps": eps}
    attrs = condense(ops.find("trust_ratio"), attrs)
    squares = (of_value.name, of_direction.name)
    ratio = Value(f"{name}.ratio", of_value.result.type)
    yield Op("trust_ratio", squares, (ratio,), attrs, source=optimizer.source)


def _sum_of_squares(
    name: str, operands: Sequence[str], parameters: Sequence[Op], optimizer: Op
) -> Op:
    """Return the sum of squares of values with the types of these parameters."""
    types = [p.result.type for p in parameters if isinstance(p.result.type, TensorType)]
    (value_type,) = ops.find("sum_of_squares").infer(types, {})
    square = Value(name, value_type)
    return Op("sum_of_squares", tuple(operands), (square,), source=optimizer.source)


def owning_parameters(graph: Graph) -> dict[str, str]:
    """Return the parameter of each gradient, clipped gradient and update direction, by
    name. Parameters map to themselves."""
    owners: dict[str, str] = {}
    for op in reversed(graph.ops):
        if is_update(op.kind) or is_update_direction(op.kind):
            owners[op.operands[0]] = owners[op.operands[1]] = op.operands[0]
        elif op.kind == "clip_value" and op.name in owners:
            owners[op.operands[0]] = owners[op.name]
    return owners
