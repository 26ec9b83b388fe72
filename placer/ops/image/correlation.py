"""What all convolutions declare alike: their kernels, result types and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from placer.errors import OpError
from placer.ops.common.checks import (
    arity,
    elements,
    ints,
    need_same_dtype,
)
from placer.ops.declaration import (
    Attr,
    Attrs,
    LayerParameter,
    Operand,
    Types,
)
from placer.ops.elementwise.activation import (
    ACTIVATIONS,
    BACKWARD_FLOPS,
    FORWARD_FLOPS,
)
from placer.ops.image.windows import (
    DILATION,
    IMAGES,
    PADDING,
    STRIDES,
    each,
    enlarged,
    image_of,
    outputs,
    pairs,
    windows,
)
from placer.types import TensorType

_WINDOW = {1: "size", 2: "height, width"}
_CHANNELS = {
    "plain": "in / groups, filters",
    "depthwise": "in, multiplier",
    "transpose": "filters / groups, in",
}


@dataclass(frozen=True, slots=True)
class Layer:
    """A kind of convolution: over how many dimensions, and how `w` joins channels."""

    kind: str
    dims: int
    style: Literal["plain", "depthwise", "transpose"] = "plain"

    @property
    def w(self) -> str:
        """The shape of `w` in words."""
        return f"[{_WINDOW[self.dims]}, {_CHANNELS[self.style]}]"

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            Operand("x", f"float, {IMAGES[self.dims]}"),
            Operand("w", f"the same dtype, {self.w}", parameter=True),
            Operand("b", "the same dtype, [filters]", optional=True, parameter=True),
        )

    @property
    def number(self) -> str:
        """The attribute that says how many filters there are, or for each channel."""
        return "multiplier" if self.style == "depthwise" else "filters"

    def joins(self, channels: int, groups: int, number: int) -> tuple[int, int]:
        """The last two dimensions of `w`."""
        match self.style:
            case "plain":
                return channels // groups, number
            case "depthwise":
                return channels, number
            case "transpose":
                return number // groups, channels

    def filters(self, channels: int, groups: int, w: TensorType) -> int | None:
        """How many filters `w` makes of so many channels; None if it does not fit."""
        if w.rank != self.dims + 2 or not ints(w.shape) or 0 in w.shape:
            return None
        first, second = (int(d) for d in w.shape[-2:])
        match self.style:
            case "plain" if (first, second % groups) == (channels // groups, 0):
                return second
            case "depthwise" if first == channels:
                return channels * second
            case "transpose" if second == channels:
                return first * groups
        return None


def _groups(layer: Layer, channels: int, attrs: Attrs) -> int:
    """Into how many groups the channels are parted; depthwise ones do not say."""
    groups: int = attrs.get("groups", 1)
    if groups < 1 or channels % groups:
        raise OpError(
            f"{layer.kind} cannot part {channels} channels into {groups} groups",
            attr="groups",
        )
    return groups


def _image(layer: Layer, types: Types, attrs: Attrs) -> tuple[int, ...]:
    """The sizes of the result, without batch and filters."""
    image, _ = image_of(layer.kind, types, layer.dims)
    window = [int(d) for d in types[1].shape[: layer.dims]]
    given = (attrs["strides"], attrs["padding"], attrs["dilation"])
    if layer.style == "transpose":
        return enlarged(layer.kind, image, window, *given)
    return outputs(layer.kind, windows(layer.kind, image, window, *given), image)


def infer(layer: Layer, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """The type of the result; OpError names the operand or attribute at fault."""
    kind = layer.kind
    arity(kind, layer.operands, types)
    _, channels = image_of(kind, types, layer.dims)
    need_same_dtype(kind, ("x", "w", "b"), types)
    x, w = types[0], types[1]
    groups = _groups(layer, channels, attrs)
    filters = layer.filters(channels, groups, w)
    if filters is None:
        apart = f" and groups {groups}" if groups > 1 else ""
        raise OpError(
            f"{kind} needs 'w' {layer.w} for 'x' {x}{apart}, 'w' is {w}", operand=1
        )
    if len(types) == 3 and types[2].shape != (filters,):
        raise OpError(
            f"{kind} needs 'b' [{filters}] for 'w' {w}, 'b' is {types[2]}", operand=2
        )
    shape = (x.shape[0], *_image(layer, types, attrs), filters)
    return (TensorType(x.dtype, shape),)


def parameters(layer: Layer, types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    """`w` for the channels of x, and `b`; OpError names the attribute at fault."""
    kind = layer.kind
    if len(types) != 1:
        raise OpError(
            f"{kind} needs 1 operand (x) beside its parameters, {len(types)} given"
        )
    _, channels = image_of(kind, types, layer.dims)
    window = each(kind, "kernel_size", attrs["kernel_size"], layer.dims)
    groups, number = _groups(layer, channels, attrs), attrs[layer.number]
    if number < 1 or number % groups:
        many = f" and a multiple of {groups} groups" if groups > 1 else ""
        raise OpError(
            f"{kind} needs {layer.number} of at least 1{many}, not {number}",
            attr=layer.number,
        )
    dtype = types[0].dtype
    shape = (*window, *layer.joins(channels, groups, number))
    w = LayerParameter("w", TensorType(dtype, shape), "xavier_uniform")
    filters = layer.filters(channels, groups, w.type)
    assert filters is not None, (types, attrs)
    b = LayerParameter("b", TensorType(dtype, (filters,)), "zeros")
    return (w, b) if attrs["bias"] else (w,)


def linear(types: Types, attrs: Attrs) -> tuple[tuple[int, ...], ...]:
    """x or w, with b, as long as no activation bends the result."""
    if attrs["activation"] != "none":
        return ()
    return ((0, 2), (1, 2)) if len(types) == 3 else ((0,), (1,))


def _product(layer: Layer, types: Types, attrs: Attrs) -> int:
    """Operations of forward, and of either gradient: padding is not multiplied."""
    x, w = types[0], types[1]
    image = [int(d) for d in x.shape[1:-1]]
    window = [int(d) for d in w.shape[: layer.dims]]
    given = (attrs["strides"], attrs["padding"], attrs["dilation"])
    if layer.style == "transpose":
        image = list(enlarged(layer.kind, image, window, *given))
    met = pairs(windows(layer.kind, image, window, *given), image)
    return 2 * elements(x.shape[:1]) * met * elements(w.shape[-2:])


def flops(layer: Layer, types: Types, attrs: Attrs) -> int:
    """The products, and what is done to each element of the result."""
    out = infer(layer, types, attrs)[0].numel()
    then = FORWARD_FLOPS[attrs["activation"]] + (len(types) == 3)
    return _product(layer, types, attrs) + then * out


def grad_flops(layer: Layer, types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    """As many products as forward for x, and for w; a sum for b."""
    out = infer(layer, types, attrs)[0].numel()
    products = _product(layer, types, attrs) * sum(i < 2 for i in wrt)
    through = BACKWARD_FLOPS[attrs["activation"]] * out if wrt else 0
    return products + through + out * (2 in wrt)


def attributes(layer: Layer) -> tuple[Attr, ...]:
    """Those of Keras' layer, and the groups where it is not depthwise."""
    number = (
        Attr("multiplier", int, "the filters of each channel", default=1, build=True)
        if layer.style == "depthwise"
        else Attr(
            "filters", int, "the channels of the result", required=True, build=True
        )
    )
    groups = Attr(
        "groups", int, "the channels are parted into so many, each by itself", default=1
    )
    return (
        number,
        Attr(
            "kernel_size",
            int | list[int],
            "the window: an int, or one for each dimension",
            required=True,
            build=True,
        ),
        STRIDES,
        PADDING,
        DILATION,
        *(() if layer.style == "depthwise" else (groups,)),
        Attr("bias", bool, "whether there is a `b`", default=True, build=True),
        Attr(
            "activation",
            str,
            "applied to the result; softmax along the channels",
            default="none",
            choices=ACTIVATIONS,
        ),
    )
