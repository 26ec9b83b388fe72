"""layer_norm, rms_norm and group_norm: normalization within a row."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from placer.errors import OpError
from placer.ops.common.checks import check_attr, check_divides, normalize_axis
from placer.ops.common.costs import grad_flops_per_element
from placer.ops.declaration import Attr, Attrs, Declaration, LayerParameter, case, flag
from placer.ops.operand import Operand, Types
from placer.place.types import BATCH, HALF_FLOATS, Dim, TensorType
from placer.plan.settings.training.initializers import Init

Shape = tuple[Dim, ...]

_AFFINE = flag(
    "affine",
    "whether to create and apply parameters",
    default=True,
    for_parameters=True,
)
_BIAS = flag(
    "bias", "whether the parameters include a `bias`", default=True, for_parameters=True
)
_AXIS = Attr(
    "axis",
    int,
    "the first dimension to normalize over; all later dimensions are included",
    default=-1,
)


def _epsilon(default: float, of: str) -> Attr:
    return Attr("epsilon", float, f"added to {of}", default=default)


def _operands(x: str, shape: str, *parameters: str) -> tuple[Operand, ...]:
    created = (
        Operand(name, f"the same dtype, {shape}", True, parameter=True, same="dtype")
        for name in parameters
    )
    return (Operand("x", x, dtype="float"), *created)


_FROM_AXIS = (
    "float; no dimension from `axis` on is the batch",
    "the dimensions of x from `axis` on",
)
_LAYER = _operands(*_FROM_AXIS, "scale", "bias")
_RMS = _operands(*_FROM_AXIS, "scale")
_GROUP = _operands("float, [batch, …, channels]", "[channels]", "scale", "bias")


_INITS: dict[str, Init] = {"scale": "ones", "bias": "zeros"}


def _linear(types: Types, attrs: Attrs) -> tuple[tuple[int, ...], ...]:
    return (tuple(range(1, len(types))),) if len(types) > 1 else ()


def _split_shape(types: Types, attrs: Attrs) -> tuple[Shape, tuple[int, ...]]:
    """Split x's dimensions at `axis`; raise OpError if the batch is normalized."""
    x = types[0]
    axis = normalize_axis(attrs["axis"], x.rank)
    if BATCH in x.shape[axis:]:
        raise OpError(
            f"normalizes within a row, but the dimensions of 'x' {x} from axis"
            f" {attrs['axis']} on include the batch",
            attr="axis",
        )
    return x.shape[:axis], tuple(int(d) for d in x.shape[axis:])


Shapes = Callable[[Types, Attrs], tuple[Shape, tuple[int, ...]]]


def _declare(
    kind: str,
    doc: str,
    operands: tuple[Operand, ...],
    shapes: Shapes,
    statistics: int,
    each: int,
    grad: tuple[int, ...],
    **fields: Any,
) -> Declaration:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        shape = shapes(types, attrs)[1]
        valid = 0 < attrs["epsilon"] < inf
        check_attr(attrs, "epsilon", valid, "a finite epsilon above 0", "g")
        for index, type_ in enumerate(types[1:], 1):
            if type_.shape != shape:
                raise OpError(
                    f"needs '{operands[index].name}' {list(shape)} for 'x'"
                    f" {types[0]}, not {type_}",
                    operand=index,
                )
        return (types[0],)

    def residuals(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        # The statistics of half floats are computed and saved in float32
        dtype = types[0].dtype if types[0].dtype not in HALF_FLOATS else "float32"
        return (TensorType(dtype, shapes(types, attrs)[0]),) * statistics

    def parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
        if not attrs["affine"] and not attrs.get("bias", True):
            raise OpError(
                "has no parameters without 'affine', so 'bias' has no effect",
                attr="bias",
                hint="leave bias out, or write affine: true for a scale without a bias",
            )
        type_ = TensorType(types[0].dtype, shapes(types, attrs)[1])
        return tuple(
            LayerParameter(o.name, type_, _INITS[o.name])
            for o in operands
            if o.parameter and attrs["affine"] and attrs.get(o.name, True)
        )

    return Declaration(
        kind,
        doc,
        operands,
        infer,
        flops=lambda types, attrs: (each + len(types) - 1) * types[0].numel(),
        grad_flops=grad_flops_per_element(*grad),
        linear=_linear,
        saves=lambda types, attrs: (0, 1) if len(types) > 1 else (0,),
        residuals=residuals,
        creates=parameters,
        **fields,
    )


LAYER_NORM = _declare(
    "layer_norm",
    "Layer normalization: scales x to mean 0 and variance 1 over the dimensions"
    " from `axis` on, then applies `scale` and `bias`. The statistics of half"
    " floats are computed in float32. Creates the parameters `scale` and `bias`.",
    _LAYER,
    _split_shape,
    2,
    5,
    (10, 4, 1),
    attrs=(_AXIS, _epsilon(1e-5, "the variance"), _AFFINE, _BIAS),
    formula="out = scale · (x - mean) / √(variance + epsilon) + bias, where variance is"
    " the mean of (x - mean)²",
    source="Ba, Kiros and Hinton (2016); epsilon as in PyTorch (Keras uses 1e-3)",
    cases=(
        case("float32[batch, 20, 64], float32[64], float32[64]"),
        case("float32[batch, 20, 64]", axis=1),
    ),
)


RMS_NORM = _declare(
    "rms_norm",
    "Root mean square normalization: scales x to a mean square of 1 over the"
    " dimensions from `axis` on, then applies `scale`. The mean square of half"
    " floats is computed in float32. Creates the parameter `scale`.",
    _RMS,
    _split_shape,
    1,
    3,
    (7, 3),
    attrs=(_AXIS, _epsilon(1e-6, "the mean square"), _AFFINE),
    formula="out = scale · x / √(mean(x²) + epsilon)",
    source="Zhang and Sennrich (2019); epsilon as in Keras",
    cases=(case("float32[batch, 20, 64], float32[64]"),),
)


def _group_shapes(types: Types, attrs: Attrs) -> tuple[Shape, tuple[int, ...]]:
    """Return the shapes of the groups and of the channels."""
    x, groups = types[0], attrs["groups"]
    if x.rank < 2 or BATCH in x.shape[1:]:
        raise OpError(f"needs [batch, …, channels], 'x' is {x}", operand=0)
    channels = int(x.shape[-1])
    check_divides(attrs, "groups", channels, f"{channels} channels")
    return (x.shape[0], groups), (channels,)


GROUP_NORM = _declare(
    "group_norm",
    "Group normalization: within each row, scales each group of channels to mean"
    " 0 and variance 1, then applies `scale` and `bias`. With one channel per"
    " group, it is instance normalization. The statistics of half floats are"
    " computed in float32. Creates the parameters `scale` and `bias`.",
    _GROUP,
    _group_shapes,
    2,
    5,
    (10, 4, 1),
    attrs=(
        Attr("groups", int, "the number of channel groups", default=32),
        _epsilon(1e-5, "the variance"),
        _AFFINE,
        _BIAS,
    ),
    formula="out = scale · (x - mean) / √(variance + epsilon) + bias, where mean and"
    " variance are over all positions of a row and the channels of a group",
    source="Wu and He (2018), with their default number of groups; epsilon as in"
    " PyTorch",
    cases=(
        case("float32[batch, 8, 8, 64], float32[64], float32[64]", groups=8),
        case("float32[batch, 8, 8, 64]"),
    ),
)
