"""Kernels, result types and costs shared by all convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from placer.errors import OpError
from placer.ops.common.checks import (
    check_attr,
    check_divides,
    count_elements,
    is_static,
)
from placer.ops.declaration import Attr, Attrs, LayerParameter
from placer.ops.elementwise.activation import BIAS, activation_attr
from placer.ops.image.window_checks import (
    DILATION,
    IMAGES,
    PADDING,
    STRIDES,
    check_sizes,
    check_slide,
    image_sizes,
    sizes_attr,
)
from placer.ops.image.windows import Slide
from placer.ops.linear.weighted import check_bias, make_weights
from placer.ops.operand import Operand, Types, operand_error, require_same_dtype
from placer.place.types import TensorType

_WINDOW = {1: "size", 2: "height, width"}
_CHANNELS = {
    "plain": "in / groups, filters",
    "depthwise": "in, multiplier",
    "transpose": "filters / groups, in",
}


@dataclass(frozen=True, slots=True)
class ConvLayer:
    """A kind of convolution.

    Attributes:
        dims: the number of spatial dimensions.
        style: how `w` connects input and output channels.
    """

    kind: str
    dims: int
    style: Literal["plain", "depthwise", "transpose"] = "plain"

    @property
    def w_shape(self) -> str:
        """The shape of `w`, for the documentation."""
        return f"[{_WINDOW[self.dims]}, {_CHANNELS[self.style]}]"

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            Operand("x", f"float, {IMAGES[self.dims]}"),
            Operand("w", f"the same dtype, {self.w_shape}", parameter=True),
            Operand("b", "the same dtype, [filters]", optional=True, parameter=True),
        )

    @property
    def filters_attr(self) -> str:
        """The attribute with the number of filters, or of filters per channel."""
        return "multiplier" if self.style == "depthwise" else "filters"

    def channel_dims(self, channels: int, groups: int, number: int) -> tuple[int, int]:
        """Return the last two dimensions of `w`."""
        match self.style:
            case "plain":
                return channels // groups, number
            case "depthwise":
                return channels, number
            case "transpose":
                return number // groups, channels

    def count_filters(self, channels: int, groups: int, w: TensorType) -> int | None:
        """Return the number of channels of the result; None if `w` does not fit."""
        if w.rank != self.dims + 2 or not is_static(w.shape) or 0 in w.shape:
            return None
        first, second = (int(d) for d in w.shape[-2:])
        number = first * groups if self.style == "transpose" else second
        expected = self.channel_dims(channels, groups, number)
        if (first, second) != expected or number % groups:
            return None
        return channels * number if self.style == "depthwise" else number


def _groups(layer: ConvLayer, channels: int, attrs: Attrs) -> int:
    if layer.style == "depthwise":
        return 1  # a depthwise convolution has no attribute groups
    check_divides(attrs, "groups", channels, f"{channels} channels")
    groups: int = attrs["groups"]
    return groups


def _slide(layer: ConvLayer, types: Types, attrs: Attrs) -> Slide:
    image, _ = image_sizes(types, layer.dims)
    window = [int(d) for d in types[1].shape[: layer.dims]]
    options = attrs["strides"], attrs["padding"], attrs["dilation"]
    transposed = layer.style == "transpose"
    return check_slide(image, window, *options, transposed=transposed)


def infer(layer: ConvLayer, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """Return the result type; raise OpError for an invalid operand or attribute."""
    _, channels = image_sizes(types, layer.dims)
    for index in range(1, len(types)):
        require_same_dtype(("x", "w", "b"), types, index)
    x, w = types[0], types[1]
    groups = _groups(layer, channels, attrs)
    filters = layer.count_filters(channels, groups, w)
    if filters is None:
        grouped = f" and groups {groups}" if groups > 1 else ""
        needed = f"'w' {layer.w_shape} for 'x' {x}{grouped}"
        raise operand_error(types, 1, "w", needed)
    check_bias(types, filters)
    slide = _slide(layer, types, attrs)
    sizes = slide.image if layer.style == "transpose" else slide.outputs
    return (TensorType(x.dtype, (x.shape[0], *sizes, filters)),)


def make_parameters(
    layer: ConvLayer, types: Types, attrs: Attrs
) -> tuple[LayerParameter, ...]:
    """Return the parameters `w` and `b`; raise OpError for an invalid attribute."""
    _, channels = image_sizes(types, layer.dims)
    window = check_sizes("kernel_size", attrs["kernel_size"], layer.dims)
    dilation = check_sizes("dilation", attrs["dilation"], layer.dims)
    if max(dilation) > 1 and all(
        min(pair) == 1 for pair in zip(window, dilation, strict=True)
    ):
        raise OpError(
            "has 'dilation' for a window of one element, where it has no effect",
            attr="dilation",
            hint="leave dilation out, or write a larger kernel_size",
        )
    groups, number = _groups(layer, channels, attrs), attrs[layer.filters_attr]
    needed = f"{layer.filters_attr} of at least 1"
    if groups > 1:
        needed += f" and a multiple of {groups} groups"
    valid = number >= 1 and number % groups == 0
    check_attr(attrs, layer.filters_attr, valid, needed)
    shape = (*window, *layer.channel_dims(channels, groups, number))
    filters = channels * number if layer.style == "depthwise" else number
    return make_weights(types[0].dtype, shape, filters, attrs["bias"])


def product_flops(layer: ConvLayer, types: Types, attrs: Attrs) -> int:
    """Count the operations of the product of x and w, without padding."""
    x, w = types[0].shape, types[1].shape
    taps = prod(map(sum, _slide(layer, types, attrs).counts))
    return 2 * taps * count_elements((x[0], *w[-2:]))


def make_attributes(layer: ConvLayer) -> tuple[Attr, ...]:
    """Return the attributes of Keras' layer, and `groups` unless it is depthwise."""
    depthwise = layer.style == "depthwise"
    numbers = "filters per channel" if depthwise else "channels of the result"
    number = Attr(
        layer.filters_attr,
        int,
        f"the number of {numbers}",
        default=1 if depthwise else None,
        required=not depthwise,
        for_parameters=True,
        example=None if depthwise else 32,
    )
    groups = Attr(
        "groups",
        int,
        "the number of channel groups; each group is convolved separately",
        default=1,
    )
    return (
        number,
        sizes_attr(
            "kernel_size",
            "the size of the window",
            required=True,
            for_parameters=True,
            example=3,
        ),
        STRIDES,
        PADDING,
        DILATION,
        *(() if depthwise else (groups,)),
        BIAS,
        activation_attr("the channels"),
    )
