"""Windows that slide over images: strides, dilation and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from placer.errors import OpError, did_you_mean
from placer.ops.declaration import Attr
from placer.ops.operand import Types
from placer.types import BATCH, TensorType

Sizes = int | Sequence[int]
Padding = str | int | Sequence[Sequence[int]]
Counts = tuple[tuple[int, ...], ...]

IMAGES = {1: "[batch, length, channels]", 2: "[batch, height, width, channels]"}
"""The shape of operand and result, by the number of dimensions that a window has."""

PADDING = Attr(
    "padding",
    Literal["valid", "same"] | int | list[list[int]],
    "`valid`: none; `same`: as many elements as result in ⌈size / stride⌉ outputs, an"
    " odd one at the end; an int: that many on each side; or [before, after] for each"
    " dimension",
    default="valid",
)


def sizes_attr(name: str, doc: str, **fields: Any) -> Attr:
    """Return an attribute with a value for each dimension of a window."""
    doc = f"{doc}: an int, or one for each dimension"
    return Attr(name, int | list[int], doc, **fields)


STRIDES = sizes_attr("strides", "the distance between windows", default=1)
DILATION = Attr(
    "dilation",
    int | list[int],
    "the distance between the elements of a window, likewise",
    default=1,
)


@dataclass(frozen=True, slots=True)
class Window:
    """A window that slides along one dimension.

    `low` and `high` are the numbers of padding elements before and after the dimension.
    Tap k of output i reads the element `i · stride + k · dilation - low`, which is
    padding if it is out of range.
    """

    size: int
    stride: int = 1
    dilation: int = 1
    low: int = 0
    high: int = 0

    @property
    def span(self) -> int:
        """The number of elements from the first tap to the last."""
        return (self.size - 1) * self.dilation + 1

    def output_size(self, size: int) -> int:
        """Return the number of outputs for `size` elements, below 1 if too few."""
        return (size + self.low + self.high - self.span) // self.stride + 1

    def taps_inside(self, size: int) -> tuple[int, ...]:
        """Return, for each output, how many of its taps are not padding."""
        starts = (i * self.stride - self.low for i in range(self.output_size(size)))
        return tuple(self._count_inside(start, size) for start in starts)

    def _count_inside(self, start: int, size: int) -> int:
        first = -(min(0, start) // self.dilation)
        last = min(self.size - 1, (size - 1 - start) // self.dilation)
        return max(0, last - first + 1)


def per_dimension(name: str, value: Sizes, dims: int) -> tuple[int, ...]:
    """Return an attribute's value for each of `dims` dimensions.

    Raises OpError if it is not one int of at least 1, or a list of `dims` such ints.
    """
    values = (value,) * dims if isinstance(value, int) else tuple(value)
    if len(values) != dims or any(n < 1 for n in values):
        expected = "an int" if dims == 1 else f"an int or a list of {dims} ints"
        written = value if isinstance(value, int) else list(value)
        raise OpError(
            f"needs {name} {expected} of at least 1, not {written}", attr=name
        )
    return values


@dataclass(frozen=True, slots=True)
class Slide:
    """Windows that slide over an image.

    The sizes of the image, and the numbers of outputs, are without batch and channels.
    """

    image: tuple[int, ...]
    windows: tuple[Window, ...]
    outputs: tuple[int, ...]

    @property
    def counts(self) -> Counts:
        """For each dimension, how many taps of each output are not padding."""
        pairs = zip(self.windows, self.image, strict=True)
        return tuple(window.taps_inside(size) for window, size in pairs)

    def over_images(self) -> Slide:
        """Return the same slide over images. A sequence is an image of height 1."""
        ones = (1,) * (2 - len(self.windows))
        windows = (*map(Window, ones), *self.windows)
        return Slide((*ones, *self.image), windows, (*ones, *self.outputs))


def slide_windows(
    x: Sequence[int],
    sizes: Sequence[int],
    strides: Sizes,
    padding: Padding,
    dilation: Sizes = 1,
    *,
    transposed: bool = False,
) -> Slide:
    """Return how windows of these sizes slide over operand x, of sizes `x`.

    Those of a transposed convolution slide over its result, and x are the outputs.
    Raises OpError for an invalid attribute, or if x is smaller than a window.
    """
    each_stride = per_dimension("strides", strides, len(sizes))
    each_dilation = per_dimension("dilation", dilation, len(sizes))
    unpadded = [*map(Window, sizes, each_stride, each_dilation)]
    image = tuple(x)
    if transposed:
        image = _transposed_sizes(unpadded, padding, x)
    pairs = _padding_pairs(padding, unpadded, image)
    windows = tuple(
        replace(window, low=low, high=high)
        for window, (low, high) in zip(unpadded, pairs, strict=True)
    )
    outputs = tuple(x) if transposed else _count_outputs(windows, image)
    return Slide(image, windows, outputs)


def _padding_pairs(
    padding: Padding, unpadded: Sequence[Window], image: Sequence[int]
) -> Sequence[Sequence[int]]:
    """Return [before, after] for each dimension."""
    if padding == "valid":
        return [(0, 0)] * len(unpadded)
    if padding == "same":
        return [
            _same_padding(window, size)
            for window, size in zip(unpadded, image, strict=True)
        ]
    if isinstance(padding, str):
        raise OpError(
            f"cannot have padding: {padding}",
            attr="padding",
            hint=did_you_mean(padding, ("valid", "same")),
        )
    pairs = (
        [(padding, padding)] * len(unpadded) if isinstance(padding, int) else padding
    )
    if len(pairs) != len(unpadded) or any(len(p) != 2 or min(p) < 0 for p in pairs):
        written = padding if isinstance(padding, int) else [list(p) for p in padding]
        raise OpError(
            f"needs a padding of 0 or more on every side, not {written}",
            attr="padding",
            hint="write valid, same, an int, or [before, after] for each of"
            f" {len(unpadded)} dimension{'s' if len(unpadded) > 1 else ''}",
        )
    return pairs


def _same_padding(window: Window, size: int) -> tuple[int, int]:
    last = (-(-size // window.stride) - 1) * window.stride
    total = max(0, last + window.span - size)
    return total // 2, total - total // 2


def _transposed_sizes(
    unpadded: Sequence[Window], padding: Padding, outputs: Sequence[int]
) -> tuple[int, ...]:
    """Return the sizes of an image over which the windows have these outputs.

    Several sizes may satisfy that. As in Keras, the result is the largest for `valid`,
    and `size · stride` for `same`. For a padding in numbers it is the smallest, as in
    PyTorch.

    Raises OpError if the padding leaves no element.
    """
    pairs = [*zip(unpadded, outputs, strict=True)]
    if padding == "valid":
        return tuple((n - 1) * w.stride + max(w.span, w.stride) for w, n in pairs)
    if padding == "same":
        return tuple(n * w.stride for w, n in pairs)
    smallest = [(n - 1) * w.stride + w.span for w, n in pairs]
    removed = _padding_pairs(padding, unpadded, outputs)
    result = tuple(n - sum(ends) for n, ends in zip(smallest, removed, strict=True))
    if min(result) < 1:
        raise OpError(
            f"cannot remove a padding of {[list(ends) for ends in removed]} from"
            f" a result of {smallest}",
            attr="padding",
        )
    return result


def adaptive_bins(size: int, number: int) -> tuple[tuple[int, int], ...]:
    """Return start and end of each of `number` windows that together cover `size`.

    Window i is from ⌊i · size / number⌋ to ⌈(i + 1) · size / number⌉, as in PyTorch's
    adaptive pooling.
    """
    return tuple(
        (i * size // number, -(-(i + 1) * size // number)) for i in range(number)
    )


def image_sizes(types: Types, dims: int) -> tuple[tuple[int, ...], int]:
    """Return the sizes and the number of channels of operand x.

    `dims` is the number of dimensions without batch and channels. Raises OpError if x
    does not have such a shape.
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


def _count_outputs(windows: Sequence[Window], image: Sequence[int]) -> tuple[int, ...]:
    """Return the number of outputs of each window; raise OpError if there is none."""
    numbers = tuple(w.output_size(size) for w, size in zip(windows, image, strict=True))
    for window, size, number in zip(windows, image, numbers, strict=True):
        if number < 1:
            raise OpError(
                f"has a window of {window.span} where 'x' has"
                f" {size + window.low + window.high} elements",
                operand=0,
                hint="use padding: same to extend 'x'",
            )
    return numbers
