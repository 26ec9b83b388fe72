"""Attributes of sliding windows, and their checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from placer.errors import OpError, did_you_mean
from placer.ops.declaration import Attr
from placer.ops.image.windows import (
    Padding,
    Sizes,
    Slide,
    per_dimension,
    slide_pool,
    slide_windows,
)
from placer.ops.operand import Types
from placer.place.types import BATCH, TensorType

IMAGES = {1: "[batch, length, channels]", 2: "[batch, height, width, channels]"}
"""The shape of operand and result, by the number of spatial dimensions."""

PADDING = Attr(
    "padding",
    Literal["valid", "same"] | int | list[list[int]],
    "`valid`: no padding; `same`: enough padding for ⌈size / stride⌉ outputs,"
    " evenly on both sides, an odd element at the end; an int: that many elements"
    " on each side; or [before, after] for each dimension",
    default="valid",
)


def sizes_attr(name: str, doc: str, **fields: Any) -> Attr:
    """Return an attribute with one value, or one for each dimension of a window."""
    doc = f"{doc}: an int, or one for each dimension"
    return Attr(name, int | list[int], doc, **fields)


STRIDES = sizes_attr("strides", "the distance between windows", default=1)
DILATION = Attr(
    "dilation",
    int | list[int],
    "the distance between the elements of a window: an int, or one for each dimension",
    default=1,
)


def check_sizes(name: str, value: Sizes, dims: int) -> tuple[int, ...]:
    """Return the attribute's value for each of `dims` dimensions.

    Raises OpError unless it is an int of at least 1, or a list of `dims` such ints.
    """
    values = per_dimension(value, dims)
    if len(values) != dims or any(n < 1 for n in values):
        expected = "an int" if dims == 1 else f"an int or a list of {dims} ints"
        written = value if isinstance(value, int) else list(value)
        raise OpError(
            f"needs {name} {expected} of at least 1, not {written}", attr=name
        )
    return values


def _check_padding(padding: Padding, dims: int) -> None:
    if isinstance(padding, str):
        if padding not in ("valid", "same"):
            raise OpError(
                f"cannot have padding: {padding}",
                attr="padding",
                hint=did_you_mean(padding, ("valid", "same")),
            )
        return
    pairs = [(padding, padding)] * dims if isinstance(padding, int) else padding
    if len(pairs) != dims or any(len(p) != 2 or min(p) < 0 for p in pairs):
        written = padding if isinstance(padding, int) else [list(p) for p in padding]
        raise OpError(
            f"needs a padding of 0 or more on every side, not {written}",
            attr="padding",
            hint="write valid, same, an int, or [before, after] for each of"
            f" {dims} dimension{'s' if dims > 1 else ''}",
        )


def check_slide(
    x: Sequence[int],
    sizes: Sequence[int],
    strides: Sizes,
    padding: Padding,
    dilation: Sizes = 1,
    *,
    transposed: bool = False,
) -> Slide:
    """Return the windows of a convolution, as `slide_windows` does.

    Raises OpError for an invalid attribute, if x is smaller than a window, or if the
    padding of a transposed convolution leaves no element.
    """
    check_sizes("strides", strides, len(sizes))
    check_sizes("dilation", dilation, len(sizes))
    _check_padding(padding, len(sizes))
    slide = slide_windows(x, sizes, strides, padding, dilation, transposed=transposed)
    if transposed:
        _check_result(slide)
    for window, size in zip(slide.windows, slide.image, strict=True):
        if window.output_size(size) < 1:
            raise OpError(
                f"has a window of {window.span} elements, but 'x' has"
                f" {size + window.low + window.high}, padding included",
                operand=0,
                hint="use padding: same to extend 'x'",
            )
    return slide


def _check_result(slide: Slide) -> None:
    if min(slide.image) < 1:
        removed = [[window.low, window.high] for window in slide.windows]
        pairs = zip(slide.image, removed, strict=True)
        raise OpError(
            f"cannot remove a padding of {removed} from"
            f" a result of {[size + sum(ends) for size, ends in pairs]}",
            attr="padding",
        )


def check_pool(
    image: Sequence[int], pool_size: Sizes, strides: Sizes | None, padding: Padding
) -> Slide:
    """Return the windows of a pooling op, as `slide_pool` does.

    Raises OpError for an invalid attribute, if the image is smaller than a window, or
    if a window could contain only padding.
    """
    size = check_sizes("pool_size", pool_size, len(image))
    check_slide(image, size, size if strides is None else strides, padding)
    slide = slide_pool(image, pool_size, strides, padding)
    for window in slide.windows:
        padded = max(window.low, window.high)
        if padded >= window.size:
            raise OpError(
                f"needs a padding smaller than its window of {window.size}, not"
                f" {padded}",
                attr="padding",
            )
    return slide


def image_sizes(types: Types, dims: int) -> tuple[tuple[int, ...], int]:
    """Return the spatial sizes and the number of channels of operand x.

    Raises OpError unless x is [batch, `dims` spatial dimensions, channels].
    """
    x = types[0]
    if not x.is_float or x.rank != dims + 2 or {BATCH, 0} & {*x.shape[1:]}:
        raise OpError(
            f"needs a float operand {IMAGES[dims]} as 'x', not {x}",
            operand=0,
            hint=_channels_hint(x, dims),
        )
    *sizes, channels = (int(d) for d in x.shape[1:])
    return tuple(sizes), channels


def _channels_hint(x: TensorType, dims: int) -> str | None:
    if x.is_float and x.rank == dims + 1 and BATCH not in x.shape[1:]:
        sizes = ", ".join(map(str, x.shape))
        return f"reshape it to [{sizes}, 1] if it has one channel"
    return None
