"""layer_norm, rms_norm and group_norm: normalization within a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from placer.errors import OpError
from placer.ops.common.checks import (
    check_arity,
    normalize_axis,
    require_float,
    require_same_dtype,
    rowwise,
)
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    LayerParameter,
    Operand,
    Types,
)
from placer.types import BATCH, Dim, TensorType

Shape = tuple[Dim, ...]

_AFFINE = Attr(
    "affine",
    bool,
    "whether to create and apply parameters",
    default=True,
    for_parameters=True,
)
_BIAS = Attr(
    "bias",
    bool,
    "whether the parameters include a `bias`",
    default=True,
    for_parameters=True,
)
_AXIS = Attr(
    "axis",
    int,
    "the first of the dimensions to normalize over, which are all from it on",
    default=-1,
)


def _epsilon(default: float, of: str) -> Attr:
    return Attr("epsilon", float, f"added to {of}", default=default)


def _operands(x: str, shape: str, *parameters: str) -> tuple[Operand, ...]:
    created = (
        Operand(name, f"the same dtype, {shape}", optional=True, parameter=True)
        for name in parameters
    )
    return (Operand("x", x), *created)


_FROM_AXIS = (
    "float; no dimension from `axis` on is the batch",
    "the dimensions of x from `axis` on",
)
_LAYER = _operands(*_FROM_AXIS, "scale", "bias")
_RMS = _operands(*_FROM_AXIS, "scale")
_GROUP = _operands("float, [batch, …, channels]", "[channels]", "scale", "bias")


def _check(
    kind: str,
    operands: Sequence[Operand],
    types: Types,
    shape: Sequence[int],
    attrs: Attrs,
) -> None:
    """Raise OpError unless the parameters have x's dtype and that shape."""
    if not 0 < attrs["epsilon"] < inf:
        raise OpError(
            f"{kind} needs a finite epsilon above 0, not {attrs['epsilon']:g}",
            attr="epsilon",
        )
    names = [operand.name for operand in operands]
    require_same_dtype(kind, names, types)
    for index, type_ in enumerate(types[1:], 1):
        if type_.shape != tuple(shape):
            raise OpError(
                f"{kind} needs '{names[index]}' {list(shape)} for 'x' {types[0]}, it is"
                f" {type_}",
                operand=index,
            )


def _make_parameters(
    kind: str, operands: Sequence[Operand], types: Types, shape: Shape, attrs: Attrs
) -> tuple[LayerParameter, ...]:
    if len(types) != 1:
        raise OpError(
            f"{kind} needs 1 operand (x) beside its parameters, {len(types)} given"
        )
    type_ = TensorType(types[0].dtype, shape)
    inits = {"scale": "ones", "bias": "zeros"}
    names = [operand.name for operand in operands if operand.parameter]
    return tuple(
        LayerParameter(name, type_, inits[name])
        for name in names
        if attrs["affine"] and attrs.get(name, True)
    )


def _statistic(x: TensorType, shape: Shape) -> TensorType:
    """Return the type of a mean or an inverse deviation, float32 for half floats."""
    half = x.dtype in ("float16", "bfloat16")
    return TensorType("float32" if half else x.dtype, shape)


def _saves(types: Types, attrs: Attrs) -> tuple[int, ...]:
    return (0, 1) if len(types) > 1 else (0,)


def _linear(types: Types, attrs: Attrs) -> tuple[tuple[int, ...], ...]:
    return (tuple(range(1, len(types))),) if len(types) > 1 else ()


def _flops(each: int) -> Callable[[Types, Attrs], int]:
    """Return `flops`: `each` operations per element, and one more per parameter."""
    return lambda types, attrs: (each + len(types) - 1) * types[0].numel()


def _grad_flops(*each: int) -> Callable[[Types, Attrs, Sequence[int]], int]:
    """Return `grad_flops`, given the operations per element for each operand."""
    return lambda types, attrs, wrt: sum(each[i] for i in wrt) * types[0].numel()


def _split_shape(
    kind: str, types: Types, attrs: Attrs
) -> tuple[Shape, tuple[int, ...]]:
    """Return x's dimensions before the axis and from it on.

    Raises OpError if the batch is among the latter.
    """
    check_arity(kind, _RMS if kind == "rms_norm" else _LAYER, types)
    require_float(kind, "x", types, 0)
    x = types[0]
    axis = normalize_axis(kind, attrs["axis"], x.rank)
    if BATCH in x.shape[axis:]:
        raise OpError(
            f"{kind} normalizes within a row, but the dimensions of 'x' {x} from axis"
            f" {attrs['axis']} on include the batch",
            attr="axis",
        )
    return x.shape[:axis], tuple(int(d) for d in x.shape[axis:])


def _infer_layer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _, sizes = _split_shape("layer_norm", types, attrs)
    _check("layer_norm", _LAYER, types, sizes, attrs)
    return (types[0],)


LAYER_NORM = Declaration(
    "layer_norm",
    "Layer normalization: shifts and scales x to mean 0 and variance 1 over the"
    " dimensions from `axis` on, then applies `scale` and `bias`. The statistics of"
    " half floats are computed in float32. Creates the parameters `scale` and `bias`.",
    _LAYER,
    _infer_layer,
    rowwise,
    _flops(5),
    _grad_flops(10, 4, 1),
    attrs=(_AXIS, _epsilon(1e-5, "the variance"), _AFFINE, _BIAS),
    linear=_linear,
    saves=_saves,
    residuals=lambda types, attrs: (
        (_statistic(types[0], _split_shape("layer_norm", types, attrs)[0]),) * 2
    ),
    parameters=lambda types, attrs: _make_parameters(
        "layer_norm", _LAYER, types, _split_shape("layer_norm", types, attrs)[1], attrs
    ),
    formula="out = scale · (x - mean) / √(variance + epsilon) + bias, where variance is"
    " the mean of (x - mean)²",
    source="Ba, Kiros and Hinton (2016); epsilon as in PyTorch, Keras has 1e-3",
    cases=(
        Case(("float32[batch, 20, 64]", "float32[64]", "float32[64]")),
        Case(("float32[batch, 20, 64]",), {"axis": 1}),
    ),
    example="{name: n1, op: layer_norm, in: h}",
)


def _infer_rms(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _, sizes = _split_shape("rms_norm", types, attrs)
    _check("rms_norm", _RMS, types, sizes, attrs)
    return (types[0],)


RMS_NORM = Declaration(
    "rms_norm",
    "Root mean square normalization: scales x to a mean square of 1 over the"
    " dimensions from `axis` on, then applies `scale`. The mean square of half floats"
    " is computed in float32. Creates the parameter `scale`.",
    _RMS,
    _infer_rms,
    rowwise,
    _flops(3),
    _grad_flops(7, 3),
    attrs=(_AXIS, _epsilon(1e-6, "the mean square"), _AFFINE),
    linear=_linear,
    saves=_saves,
    residuals=lambda types, attrs: (
        _statistic(types[0], _split_shape("rms_norm", types, attrs)[0]),
    ),
    parameters=lambda types, attrs: _make_parameters(
        "rms_norm", _RMS, types, _split_shape("rms_norm", types, attrs)[1], attrs
    ),
    formula="out = scale · x / √(mean(x²) + epsilon)",
    source="Zhang and Sennrich (2019); epsilon as in Keras",
    cases=(Case(("float32[batch, 20, 64]", "float32[64]")),),
    example="{name: n1, op: rms_norm, in: h}",
)


def _channels(types: Types, attrs: Attrs) -> int:
    """Return x's number of channels; raise OpError if groups do not divide it."""
    check_arity("group_norm", _GROUP, types)
    require_float("group_norm", "x", types, 0)
    x, groups = types[0], attrs["groups"]
    if x.rank < 2 or BATCH in x.shape[1:]:
        raise OpError(f"group_norm needs [batch, …, channels], 'x' is {x}", operand=0)
    channels = int(x.shape[-1])
    if groups < 1 or channels % groups:
        raise OpError(
            f"group_norm cannot divide {channels} channels into {groups} groups",
            attr="groups",
        )
    return channels


def _infer_group(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check("group_norm", _GROUP, types, (_channels(types, attrs),), attrs)
    return (types[0],)


GROUP_NORM = Declaration(
    "group_norm",
    "Group normalization: shifts and scales each group of channels of a row to mean 0"
    " and variance 1, then applies `scale` and `bias`. With as many groups as channels"
    " it is instance normalization. The statistics of half floats are computed in"
    " float32. Creates the parameters `scale` and `bias`.",
    _GROUP,
    _infer_group,
    rowwise,
    _flops(5),
    _grad_flops(10, 4, 1),
    attrs=(
        Attr("groups", int, "the number of groups of channels", default=32),
        _epsilon(1e-5, "the variance"),
        _AFFINE,
        _BIAS,
    ),
    linear=_linear,
    saves=_saves,
    residuals=lambda types, attrs: (
        (_statistic(types[0], (types[0].shape[0], attrs["groups"])),) * 2
    ),
    parameters=lambda types, attrs: _make_parameters(
        "group_norm", _GROUP, types, (_channels(types, attrs),), attrs
    ),
    formula="out = scale · (x - mean) / √(variance + epsilon) + bias, where mean and"
    " variance are over all positions of a row and the channels of a group",
    source="Wu and He (2018), with their default number of groups; epsilon as in"
    " PyTorch",
    cases=(
        Case(("float32[batch, 8, 8, 64]", "float32[64]", "float32[64]")),
        Case(("float32[batch, 8, 8, 16]",), {"groups": 4}),
    ),
    example="{name: n1, op: group_norm, in: c1, groups: 8}",
)

DECLARATIONS = (LAYER_NORM, RMS_NORM, GROUP_NORM)
