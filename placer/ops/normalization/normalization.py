"""Normalisation within a row: layer_norm, rms_norm and group_norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from placer.errors import OpError
from placer.ops.common.checks import (
    arity,
    each_row,
    need_float,
    need_same_dtype,
    normal_axis,
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

_AFFINE = Attr("affine", bool, "whether there are parameters", default=True, build=True)
_BIAS = Attr("bias", bool, "whether one of them is a `bias`", default=True, build=True)
_AXIS = Attr(
    "axis",
    int,
    "the first of the dimensions normalised together, which are all from it on",
    default=-1,
)


def _epsilon(default: float, of: str) -> Attr:
    return Attr("epsilon", float, f"added to {of}", default=default)


def _operands(x: str, shape: str, *parameters: str) -> tuple[Operand, ...]:
    made = (
        Operand(name, f"the same dtype, {shape}", optional=True, parameter=True)
        for name in parameters
    )
    return (Operand("x", x), *made)


_FROM_AXIS = ("float; no dimension from `axis` on is the batch", "x's from `axis` on")
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
    """OpError unless the parameters are of x's dtype and of that shape."""
    if not 0 < attrs["epsilon"] < inf:
        raise OpError(
            f"{kind} needs a finite epsilon above 0, not {attrs['epsilon']:g}",
            attr="epsilon",
        )
    names = [operand.name for operand in operands]
    need_same_dtype(kind, names, types)
    for index, type_ in enumerate(types[1:], 1):
        if type_.shape != tuple(shape):
            raise OpError(
                f"{kind} needs '{names[index]}' {list(shape)} for 'x' {types[0]}, it is"
                f" {type_}",
                operand=index,
            )


def _made(
    kind: str, operands: Sequence[Operand], types: Types, shape: Shape, attrs: Attrs
) -> tuple[LayerParameter, ...]:
    if len(types) != 1:
        raise OpError(
            f"{kind} needs 1 operand (x) beside its parameters, {len(types)} given"
        )
    type_ = TensorType(types[0].dtype, shape)
    inits = {"scale": "ones", "bias": "zeros"}
    given = [operand.name for operand in operands if operand.parameter]
    return tuple(
        LayerParameter(name, type_, inits[name])
        for name in given
        if attrs["affine"] and attrs.get(name, True)
    )


def _statistic(x: TensorType, shape: Shape) -> TensorType:
    """A mean or an inverse deviation: that of a half float is a float32."""
    half = x.dtype in ("float16", "bfloat16")
    return TensorType("float32" if half else x.dtype, shape)


def _saves(types: Types, attrs: Attrs) -> tuple[int, ...]:
    return (0, 1) if len(types) > 1 else (0,)


def _linear(types: Types, attrs: Attrs) -> tuple[tuple[int, ...], ...]:
    return (tuple(range(1, len(types))),) if len(types) > 1 else ()


def _flops(each: int) -> Callable[[Types, Attrs], int]:
    """`each` operations an element, and one for each parameter."""
    return lambda types, attrs: (each + len(types) - 1) * types[0].numel()


def _grad_flops(*each: int) -> Callable[[Types, Attrs, Sequence[int]], int]:
    """Operations an element for the gradient of each operand."""
    return lambda types, attrs, wrt: sum(each[i] for i in wrt) * types[0].numel()


def _from_axis(kind: str, types: Types, attrs: Attrs) -> tuple[Shape, tuple[int, ...]]:
    """x's sizes before the axis and from it on; OpError for the batch among these."""
    arity(kind, _RMS if kind == "rms_norm" else _LAYER, types)
    need_float(kind, "x", types, 0)
    x = types[0]
    axis = normal_axis(kind, attrs["axis"], x.rank)
    if BATCH in x.shape[axis:]:
        raise OpError(
            f"{kind} normalises within a row: from axis {attrs['axis']} on, 'x' {x} has"
            " the batch",
            attr="axis",
        )
    return x.shape[:axis], tuple(int(d) for d in x.shape[axis:])


def _infer_layer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _, sizes = _from_axis("layer_norm", types, attrs)
    _check("layer_norm", _LAYER, types, sizes, attrs)
    return (types[0],)


LAYER_NORM = Declaration(
    "layer_norm",
    "Shifted and scaled so that the dimensions from `axis` on have mean 0 and variance"
    " 1 together; it makes its parameters `scale` and `bias`. The statistics of a half"
    " float are taken in float32.",
    _LAYER,
    _infer_layer,
    each_row,
    _flops(5),
    _grad_flops(10, 4, 1),
    attrs=(_AXIS, _epsilon(1e-5, "the variance"), _AFFINE, _BIAS),
    linear=_linear,
    saves=_saves,
    residuals=lambda types, attrs: (
        (_statistic(types[0], _from_axis("layer_norm", types, attrs)[0]),) * 2
    ),
    parameters=lambda types, attrs: _made(
        "layer_norm", _LAYER, types, _from_axis("layer_norm", types, attrs)[1], attrs
    ),
    formula="out = scale · (x - mean) / √(variance + epsilon) + bias, the variance"
    " being mean (x - mean)²",
    source="Ba, Kiros and Hinton (2016); epsilon is PyTorch's, Keras has 1e-3",
    cases=(
        Case(("float32[batch, 20, 64]", "float32[64]", "float32[64]")),
        Case(("float32[batch, 20, 64]",), {"axis": 1}),
    ),
    example="{name: n1, op: layer_norm, in: h}",
)


def _infer_rms(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _, sizes = _from_axis("rms_norm", types, attrs)
    _check("rms_norm", _RMS, types, sizes, attrs)
    return (types[0],)


RMS_NORM = Declaration(
    "rms_norm",
    "Scaled so that the dimensions from `axis` on have mean square 1 together; it makes"
    " its parameter `scale`. The mean square of a half float is taken in float32.",
    _RMS,
    _infer_rms,
    each_row,
    _flops(3),
    _grad_flops(7, 3),
    attrs=(_AXIS, _epsilon(1e-6, "the mean square"), _AFFINE),
    linear=_linear,
    saves=_saves,
    residuals=lambda types, attrs: (
        _statistic(types[0], _from_axis("rms_norm", types, attrs)[0]),
    ),
    parameters=lambda types, attrs: _made(
        "rms_norm", _RMS, types, _from_axis("rms_norm", types, attrs)[1], attrs
    ),
    formula="out = scale · x / √(mean x² + epsilon)",
    source="Zhang and Sennrich (2019); epsilon is Keras'",
    cases=(Case(("float32[batch, 20, 64]", "float32[64]")),),
    example="{name: n1, op: rms_norm, in: h}",
)


def _channels(types: Types, attrs: Attrs) -> int:
    """The channels of x; OpError when they do not make groups."""
    arity("group_norm", _GROUP, types)
    need_float("group_norm", "x", types, 0)
    x, groups = types[0], attrs["groups"]
    if x.rank < 2 or BATCH in x.shape[1:]:
        raise OpError(f"group_norm needs [batch, …, channels], 'x' is {x}", operand=0)
    channels = int(x.shape[-1])
    if groups < 1 or channels % groups:
        raise OpError(
            f"group_norm cannot part {channels} channels into {groups} groups",
            attr="groups",
        )
    return channels


def _infer_group(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check("group_norm", _GROUP, types, (_channels(types, attrs),), attrs)
    return (types[0],)


GROUP_NORM = Declaration(
    "group_norm",
    "Shifted and scaled so that each group of channels of a row has mean 0 and variance"
    " 1; it makes its parameters `scale` and `bias`. With as many groups as channels it"
    " is instance normalisation. The statistics of a half float are taken in float32.",
    _GROUP,
    _infer_group,
    each_row,
    _flops(5),
    _grad_flops(10, 4, 1),
    attrs=(
        Attr("groups", int, "into how many the channels are parted", default=32),
        _epsilon(1e-5, "the variance"),
        _AFFINE,
        _BIAS,
    ),
    linear=_linear,
    saves=_saves,
    residuals=lambda types, attrs: (
        (_statistic(types[0], (types[0].shape[0], attrs["groups"])),) * 2
    ),
    parameters=lambda types, attrs: _made(
        "group_norm", _GROUP, types, (_channels(types, attrs),), attrs
    ),
    formula="out = scale · (x - mean) / √(variance + epsilon) + bias, mean and variance"
    " over all dimensions of a row and the channels of a group",
    source="Wu and He (2018), whose number of groups is the default; epsilon is"
    " PyTorch's",
    cases=(
        Case(("float32[batch, 8, 8, 64]", "float32[64]", "float32[64]")),
        Case(("float32[batch, 8, 8, 16]",), {"groups": 4}),
    ),
    example="{name: n1, op: group_norm, in: c1, groups: 8}",
)

DECLARATIONS = (LAYER_NORM, RMS_NORM, GROUP_NORM)
