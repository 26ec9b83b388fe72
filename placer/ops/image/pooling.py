"""Pooling ops: the maximum or the mean of windows, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from placer.ops.common.checks import count_elements
from placer.ops.declaration import Attr, Attrs, Declaration, case
from placer.ops.image.window_checks import (
    IMAGES,
    PADDING,
    check_pool,
    check_sizes,
    image_sizes,
    sizes_attr,
)
from placer.ops.image.windows import Counts, adaptive_counts, per_dimension, tap_dtype
from placer.ops.operand import Operand, Types
from placer.place.types import TensorType

_WINDOWED = (
    sizes_attr("pool_size", "the size of the window", required=True),
    Attr(
        "strides",
        int | list[int] | None,
        "the distance between windows, one int or one for each dimension; null:"
        " the size of the window",
    ),
    PADDING,
)
_ADAPTIVE = (sizes_attr("output_size", "the size of the result", required=True),)


@dataclass(frozen=True, slots=True)
class _Pool:
    kind: str
    dims: int
    adaptive: bool = False

    @property
    def is_max(self) -> bool:
        return "max" in self.kind


def _counts(pool: _Pool, types: Types, attrs: Attrs) -> Counts:
    image, _ = image_sizes(types, pool.dims)
    if pool.adaptive:
        numbers = check_sizes("output_size", attrs["output_size"], len(image))
        return adaptive_counts(image, numbers)
    options = attrs["pool_size"], attrs["strides"], attrs["padding"]
    return check_pool(image, *options).counts


def _infer(pool: _Pool, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, sizes = types[0], map(len, _counts(pool, types, attrs))
    return (TensorType(x.dtype, (x.shape[0], *sizes, x.shape[-1])),)


def _index_type(pool: _Pool, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """Return the type of the tap indices of the maxima, for images of height ≥ 1."""
    counts, height = _counts(pool, types, attrs), [1] * (2 - pool.dims)
    rows, *_, channels = types[0].shape
    if pool.adaptive:
        taps = prod(map(max, counts))
    else:
        taps = prod(per_dimension(attrs["pool_size"], pool.dims))
    shape = (rows, *height, *map(len, counts), channels)
    return (TensorType(tap_dtype(taps), shape),)


def _elements(pool: _Pool, types: Types, attrs: Attrs) -> tuple[int, int]:
    """Return the total number of elements in all windows, and the number of divisions."""
    x, counts = types[0].shape, _counts(pool, types, attrs)
    columns = count_elements((x[0], x[-1]))
    divided = 0 if pool.is_max else prod(map(len, counts))
    return columns * prod(map(sum, counts)), columns * divided


def _flops(pool: _Pool, types: Types, attrs: Attrs) -> int:
    return sum(_elements(pool, types, attrs))


def _grad_flops(pool: _Pool, types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    """Count the divisions, and the additions where windows overlap."""
    elements, divisions = _elements(pool, types, attrs)
    return (max(0, elements - types[0].numel()) + divisions) * len(wrt)


def _declare(pool: _Pool, doc: str, **fields: Any) -> Declaration:
    return Declaration(
        pool.kind,
        doc,
        (Operand("x", f"float, {IMAGES[pool.dims]}"),),
        partial(_infer, pool),
        flops=partial(_flops, pool),
        grad_flops=partial(_grad_flops, pool),
        attrs=_ADAPTIVE if pool.adaptive else _WINDOWED,
        linear=lambda types, attrs: () if pool.is_max else ((0,),),
        residuals=lambda types, attrs: (
            _index_type(pool, types, attrs) if pool.is_max else ()
        ),
        formula=_MAX_FORMULA if pool.is_max else _AVG_FORMULA,
        **fields,
    )


_MAX = (
    "Max pooling: the largest element of each window. Padding never counts as the"
    " largest element. Among equal elements, the first receives the gradient. A"
    " window with a NaN gives NaN."
)
_MAX_FORMULA = "out = max x over the window; dx = dy at the maximum, else 0"
_AVG = (
    "Average pooling: the mean of the elements of each window. Padding does not"
    " count, so a window at an edge divides by fewer elements."
)
_AVG_FORMULA = "out = Σ x over the window / n, where n counts its elements of x"
_BINS = (
    " Window i of n covers the elements from ⌊i · size / n⌋ up to, but not"
    " including, ⌈(i + 1) · size / n⌉. Window sizes may differ by one, and adjacent"
    " windows may share an element."
)
_TORCH = "PyTorch's adaptive pooling, with the channels last"

MAX_POOL1D = _declare(
    _Pool("max_pool1d", 1),
    _MAX,
    source="Keras' MaxPooling1D",
    cases=(case("float32[batch, 100, 16]", pool_size=4),),
)
MAX_POOL2D = _declare(
    _Pool("max_pool2d", 2),
    _MAX,
    source="Keras' MaxPooling2D",
    cases=(
        case("float32[batch, 28, 28, 32]", pool_size=2),
        case("float32[batch, 28, 28, 32]", pool_size=3, strides=2, padding="same"),
    ),
)
AVG_POOL1D = _declare(
    _Pool("avg_pool1d", 1),
    _AVG,
    source="Keras' AveragePooling1D",
    cases=(case("float32[batch, 100, 16]", pool_size=4),),
)
AVG_POOL2D = _declare(
    _Pool("avg_pool2d", 2),
    _AVG + " For the mean of a whole image, use `reduce_mean` with `axis: [1, 2]`.",
    source="Keras' AveragePooling2D; PyTorch's with count_include_pad=False",
    cases=(
        case("float32[batch, 28, 28, 32]", pool_size=2),
        case("float32[batch, 28, 28, 32]", pool_size=[3, 2], strides=1, padding="same"),
    ),
)
ADAPTIVE_MAX_POOL2D = _declare(
    _Pool("adaptive_max_pool2d", 2, adaptive=True),
    "Adaptive max pooling: divides the image into one window for each element of"
    " the result, and takes the largest element of each window."
    + _BINS
    + " Among equal elements, the first receives the gradient.",
    source=_TORCH,
    cases=(case("float32[batch, 10, 7, 32]", output_size=4),),
)
ADAPTIVE_AVG_POOL2D = _declare(
    _Pool("adaptive_avg_pool2d", 2, adaptive=True),
    "Adaptive average pooling: divides the image into one window for each element"
    " of the result, and takes the mean of each window." + _BINS,
    source=_TORCH,
    cases=(case("float32[batch, 10, 7, 32]", output_size=4),),
)
