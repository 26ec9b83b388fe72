"""Sliding windows: strides, dilation and padding.

The compiler checks the attributes of a spec with `window_checks.py`. Exported models
have a copy of this file, and call `checked_windows` and `checked_pool`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

Sizes = int | Sequence[int]
Padding = str | int | Sequence[Sequence[int]]
Counts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Window:
    """A window that slides along one dimension.

    Tap k of output i reads the element `i · stride + k · dilation - low`. An index out
    of range is padding.

    Attributes:
        low: the number of padding elements before the dimension.
        high: the number of padding elements after the dimension.
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
        """The number of outputs for `size` elements; below 1 if `size` is too small."""
        return (size + self.low + self.high - self.span) // self.stride + 1

    def taps_inside(self, size: int) -> tuple[int, ...]:
        """Return the number of taps that are not padding, for each output."""
        starts = (i * self.stride - self.low for i in range(self.output_size(size)))
        return tuple(self._count_inside(start, size) for start in starts)

    def _count_inside(self, start: int, size: int) -> int:
        first = -(min(0, start) // self.dilation)
        last = min(self.size - 1, (size - 1 - start) // self.dilation)
        return max(0, last - first + 1)


def per_dimension(value: Sizes, dims: int) -> tuple[int, ...]:
    """Return an attribute's value for each of `dims` dimensions."""
    return (value,) * dims if isinstance(value, int) else tuple(value)


@dataclass(frozen=True, slots=True)
class Slide:
    """The windows that slide over an image. All sizes are without batch and channels."""

    image: tuple[int, ...]
    windows: tuple[Window, ...]
    outputs: tuple[int, ...]

    @property
    def counts(self) -> Counts:
        """The number of taps that are not padding, for each dimension and output."""
        pairs = zip(self.windows, self.image, strict=True)
        return tuple(window.taps_inside(size) for window, size in pairs)

    def over_images(self) -> Slide:
        """Return the same windows over images. A sequence is an image of height 1."""
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
    """Return the windows that slide over an operand with the sizes `x`.

    The windows of a transposed convolution slide over its result, and `x` holds their
    outputs.
    """
    each_stride = per_dimension(strides, len(sizes))
    each_dilation = per_dimension(dilation, len(sizes))
    unpadded = [*map(Window, sizes, each_stride, each_dilation)]
    image = tuple(x)
    if transposed:
        image = _transposed_sizes(unpadded, padding, x)
    pairs = _padding_pairs(padding, unpadded, image)
    windows = tuple(
        replace(window, low=low, high=high)
        for window, (low, high) in zip(unpadded, pairs, strict=True)
    )
    outputs = (
        window.output_size(size) for window, size in zip(windows, image, strict=True)
    )
    return Slide(image, windows, tuple(x) if transposed else tuple(outputs))


def checked_windows(
    x: Sequence[int],
    sizes: Sequence[int],
    strides: Sizes,
    padding: Padding,
    dilation: Sizes = 1,
    *,
    transposed: bool = False,
) -> Slide:
    """Return `slide_windows(...)`.

    Raises ValueError for invalid attributes, and if the windows or the result are
    empty.
    """
    dims = len(sizes)
    for name, value in (("sizes", sizes), ("strides", strides), ("dilation", dilation)):
        each = per_dimension(value, dims)
        if len(each) != dims or min(each) < 1:
            raise ValueError(f"{name} must be {dims} ints of at least 1, not {value}")
    if isinstance(padding, str) and padding not in ("valid", "same"):
        raise ValueError(f"padding must be 'valid' or 'same', not '{padding}'")
    if not isinstance(padding, str):
        pairs = [(padding,) * 2] * dims if isinstance(padding, int) else padding
        if len(pairs) != dims or any(len(p) != 2 or min(p) < 0 for p in pairs):
            raise ValueError(f"padding must be 0 or more on each side, not {padding}")
    slide = slide_windows(x, sizes, strides, padding, dilation, transposed=transposed)
    if min((*slide.image, *slide.outputs)) < 1:
        raise ValueError(
            f"windows of {[w.span for w in slide.windows]} do not fit {[*slide.image]}"
        )
    return slide


def _padding_pairs(
    padding: Padding, unpadded: Sequence[Window], image: Sequence[int]
) -> Sequence[Sequence[int]]:
    if padding == "valid":
        return [(0, 0)] * len(unpadded)
    if padding == "same":
        return [
            _same_padding(window, size)
            for window, size in zip(unpadded, image, strict=True)
        ]
    assert not isinstance(padding, str), padding
    return [(padding, padding)] * len(unpadded) if isinstance(padding, int) else padding


def _same_padding(window: Window, size: int) -> tuple[int, int]:
    last = (-(-size // window.stride) - 1) * window.stride
    total = max(0, last + window.span - size)
    return total // 2, total - total // 2


def _transposed_sizes(
    unpadded: Sequence[Window], padding: Padding, outputs: Sequence[int]
) -> tuple[int, ...]:
    """Return the result size of a transposed convolution; Keras' choice if ambiguous."""
    pairs = [*zip(unpadded, outputs, strict=True)]
    if padding == "valid":
        return tuple((n - 1) * w.stride + max(w.span, w.stride) for w, n in pairs)
    if padding == "same":
        return tuple(n * w.stride for w, n in pairs)
    # the smallest possible size, as in PyTorch
    smallest = [(n - 1) * w.stride + w.span for w, n in pairs]
    removed = _padding_pairs(padding, unpadded, outputs)
    return tuple(n - sum(ends) for n, ends in zip(smallest, removed, strict=True))


def adaptive_bins(size: int, number: int) -> tuple[tuple[int, int], ...]:
    """Return start and end of each of `number` windows that together cover `size`.

    Window i is from ⌊i · size / number⌋ to ⌈(i + 1) · size / number⌉, as in PyTorch's
    adaptive pooling.
    """
    return tuple(
        (i * size // number, -(-(i + 1) * size // number)) for i in range(number)
    )


def adaptive_counts(image: Sequence[int], output_size: Sizes) -> Counts:
    """Return the sizes of adaptive windows along each dimension of an image."""
    numbers = per_dimension(output_size, len(image))
    return tuple(
        tuple(stop - start for start, stop in adaptive_bins(size, number))
        for size, number in zip(image, numbers, strict=True)
    )


def slide_pool(
    image: Sequence[int], pool_size: Sizes, strides: Sizes | None, padding: Padding
) -> Slide:
    """Return the windows of a pooling op over an image."""
    size = per_dimension(pool_size, len(image))
    return slide_windows(image, size, size if strides is None else strides, padding)


def checked_pool(
    image: Sequence[int], pool_size: Sizes, strides: Sizes | None, padding: Padding
) -> Slide:
    """Return `slide_pool(...)`.

    Raises ValueError for invalid attributes, and if a window could contain only
    padding.
    """
    size = per_dimension(pool_size, len(image))
    if len(size) != len(image):
        raise ValueError(f"pool_size must be {len(image)} ints, not {pool_size}")
    slide = checked_windows(image, size, size if strides is None else strides, padding)
    if any(max(w.low, w.high) >= w.size for w in slide.windows):
        raise ValueError(f"padding must be smaller than pool_size, not {padding}")
    return slide


def tap_dtype(taps: int) -> str:
    """Return the smallest unsigned dtype for tap indices below `taps`."""
    return next(f"uint{bits}" for bits in (8, 16, 32) if taps <= 1 << bits)
