"""Pooling, channels last: the largest or the mean of what a window meets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from placer.errors import OpError
from placer.ops.common.checks import arity, each_row, elements
from placer.ops.declaration import Attr, Attrs, Case, Declaration, Operand, Types
from placer.ops.image.windows import (
    IMAGES,
    PADDING,
    Padding,
    Sizes,
    Window,
    bins,
    each,
    image_of,
    outputs,
    windows,
)
from placer.types import TensorType

_WINDOWED = (
    Attr(
        "pool_size",
        int | list[int],
        "the window: an int, or one for each dimension",
        required=True,
    ),
    Attr(
        "strides",
        int | list[int] | None,
        "the steps of the window, likewise; null: its own size",
        default=None,
    ),
    PADDING,
)
_ADAPTIVE = (
    Attr(
        "output_size",
        int | list[int],
        "the size of the result: an int, or one for each dimension",
        required=True,
    ),
)


def pool_windows(
    kind: str,
    image: Sequence[int],
    pool_size: Sizes,
    strides: Sizes | None,
    padding: Padding,
) -> tuple[Window, ...]:
    """The windows of a pool; OpError for one that might meet nothing but padding."""
    size = each(kind, "pool_size", pool_size, len(image))
    slid = windows(kind, image, size, size if strides is None else strides, padding)
    for window in slid:
        most = max(window.low, window.high)
        if most >= window.size:
            raise OpError(
                f"{kind} needs a padding less than its window, which is {window.size},"
                f" not {most}",
                attr="padding",
            )
    return slid


def index_dtype(taps: int) -> str:
    """The least dtype that numbers so many taps of a window."""
    return next(d for d in ("uint8", "uint16", "uint32") if taps <= 1 << 8 * _BYTES[d])


_BYTES = {"uint8": 1, "uint16": 2, "uint32": 4}


@dataclass(frozen=True, slots=True)
class _Pool:
    """A kind of pooling, over `dims` dimensions."""

    kind: str
    dims: int
    adaptive: bool = False

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (Operand("x", f"float, {IMAGES[self.dims]}"),)


@dataclass(frozen=True, slots=True)
class _Meets:
    """Along one dimension: the taps of the window, and how many of them each output
    meets that are no padding."""

    taps: int
    inside: tuple[int, ...]


def _meets(pool: _Pool, types: Types, attrs: Attrs) -> tuple[_Meets, ...]:
    image, _ = image_of(pool.kind, types, pool.dims)
    if pool.adaptive:
        sizes = each(pool.kind, "output_size", attrs["output_size"], pool.dims)
        spans = [
            tuple(stop - start for start, stop in bins(size, number))
            for size, number in zip(image, sizes, strict=True)
        ]
        return tuple(_Meets(max(span), span) for span in spans)
    slid = pool_windows(
        pool.kind, image, attrs["pool_size"], attrs["strides"], attrs["padding"]
    )
    outputs(pool.kind, slid, image)
    return tuple(
        _Meets(window.size, window.inside(size))
        for window, size in zip(slid, image, strict=True)
    )


def _infer(pool: _Pool, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity(pool.kind, pool.operands, types)
    x = types[0]
    sizes = [len(met.inside) for met in _meets(pool, types, attrs)]
    return (TensorType(x.dtype, (x.shape[0], *sizes, x.shape[-1])),)


def _index(pool: _Pool, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """Which tap of its window each element is, of a sequence as an image."""
    rows, *sizes, channels = _infer(pool, types, attrs)[0].shape
    taps = prod(met.taps for met in _meets(pool, types, attrs))
    height = [1] * (2 - pool.dims)
    return (TensorType(index_dtype(taps), (rows, *height, *sizes, channels)),)


def _met(pool: _Pool, types: Types, attrs: Attrs) -> int:
    """How many elements the windows meet, one that several meet counted for each."""
    x = types[0].shape
    met = prod(sum(met.inside) for met in _meets(pool, types, attrs))
    return met * elements((x[0], x[-1]))


def _out(pool: _Pool, types: Types, attrs: Attrs) -> int:
    return _infer(pool, types, attrs)[0].numel()


def _added(pool: _Pool, types: Types, attrs: Attrs) -> int:
    """The additions of backward: where windows share an element."""
    return max(0, _met(pool, types, attrs) - types[0].numel())


def _max_pool(
    pool: _Pool, doc: str, formula: str, source: str, cases: tuple[Case, ...], line: str
) -> Declaration:
    return Declaration(
        pool.kind,
        doc,
        pool.operands,
        partial(_infer, pool),
        each_row,
        partial(_met, pool),
        lambda types, attrs, wrt: _added(pool, types, attrs) * len(wrt),
        attrs=_ADAPTIVE if pool.adaptive else _WINDOWED,
        residuals=partial(_index, pool),
        formula=formula,
        source=source,
        cases=cases,
        example=line,
    )


def _avg_pool(
    pool: _Pool, doc: str, formula: str, source: str, cases: tuple[Case, ...], line: str
) -> Declaration:
    def flops(types: Types, attrs: Attrs) -> int:
        return _met(pool, types, attrs) + _out(pool, types, attrs)

    def grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
        added = _added(pool, types, attrs)
        return (added + _out(pool, types, attrs)) * len(wrt)

    return Declaration(
        pool.kind,
        doc,
        pool.operands,
        partial(_infer, pool),
        each_row,
        flops,
        grad_flops,
        attrs=_ADAPTIVE if pool.adaptive else _WINDOWED,
        linear=lambda types, attrs: ((0,),),
        formula=formula,
        source=source,
        cases=cases,
        example=line,
    )


_MAX = (
    "The largest element that a window meets; padding is never the largest. Of equal"
    " ones the first has the gradient, and NaN is larger than any."
)
_MAX_FORMULA = "out = max x over the window; dx = dy where the largest is, else 0"
_AVG = (
    "The mean of the elements that a window meets; padding is not one of them, so that"
    " at an edge fewer are divided by."
)
_AVG_FORMULA = "out = Σ x over the window / n, n the elements of x in it"
_BINS = (
    " Window i of n is from ⌊i · size / n⌋ to ⌈(i + 1) · size / n⌉: windows may differ"
    " by one element, and neighbours may share one."
)
_TORCH = "the windows of PyTorch's adaptive pooling, channels last"

MAX_POOL1D = _max_pool(
    _Pool("max_pool1d", 1),
    _MAX,
    _MAX_FORMULA,
    "Keras' MaxPooling1D",
    (Case(("float32[batch, 100, 16]",), {"pool_size": 4}),),
    "{name: p1, op: max_pool1d, in: c1, pool_size: 2}",
)
MAX_POOL2D = _max_pool(
    _Pool("max_pool2d", 2),
    _MAX,
    _MAX_FORMULA,
    "Keras' MaxPooling2D",
    (
        Case(("float32[batch, 28, 28, 32]",), {"pool_size": 2}),
        Case(
            ("float32[batch, 28, 28, 32]",),
            {"pool_size": 3, "strides": 2, "padding": "same"},
        ),
    ),
    "{name: p1, op: max_pool2d, in: c1, pool_size: 2}",
)
AVG_POOL1D = _avg_pool(
    _Pool("avg_pool1d", 1),
    _AVG,
    _AVG_FORMULA,
    "Keras' AveragePooling1D",
    (Case(("float32[batch, 100, 16]",), {"pool_size": 4}),),
    "{name: p1, op: avg_pool1d, in: c1, pool_size: 2}",
)
AVG_POOL2D = _avg_pool(
    _Pool("avg_pool2d", 2),
    _AVG + " The mean of a whole image is `reduce_mean` with `axis: [1, 2]`.",
    _AVG_FORMULA,
    "Keras' AveragePooling2D; PyTorch's with count_include_pad=False",
    (
        Case(("float32[batch, 28, 28, 32]",), {"pool_size": 2}),
        Case(
            ("float32[batch, 28, 28, 32]",),
            {"pool_size": [3, 2], "strides": 1, "padding": "same"},
        ),
    ),
    "{name: p1, op: avg_pool2d, in: c1, pool_size: 2}",
)
ADAPTIVE_MAX_POOL2D = _max_pool(
    _Pool("adaptive_max_pool2d", 2, adaptive=True),
    "The largest element of each of as many windows as the result has places."
    + _BINS
    + " Of equal elements the first has the gradient.",
    _MAX_FORMULA,
    _TORCH,
    (Case(("float32[batch, 10, 7, 32]",), {"output_size": 4}),),
    "{name: p1, op: adaptive_max_pool2d, in: c1, output_size: [2, 2]}",
)
ADAPTIVE_AVG_POOL2D = _avg_pool(
    _Pool("adaptive_avg_pool2d", 2, adaptive=True),
    "The mean of each of as many windows as the result has places." + _BINS,
    _AVG_FORMULA,
    _TORCH,
    (Case(("float32[batch, 10, 7, 32]",), {"output_size": 4}),),
    "{name: p1, op: adaptive_avg_pool2d, in: c1, output_size: [2, 2]}",
)

DECLARATIONS = (
    MAX_POOL1D,
    MAX_POOL2D,
    AVG_POOL1D,
    AVG_POOL2D,
    ADAPTIVE_MAX_POOL2D,
    ADAPTIVE_AVG_POOL2D,
)
