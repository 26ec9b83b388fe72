"""How a kernel or a pool slides over an image: strides, dilation and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from placer.errors import OpError, did_you_mean
from placer.ops.declaration import Attr, Types
from placer.types import BATCH, TensorType

Sizes = int | Sequence[int]
Padding = str | int | Sequence[Sequence[int]]

IMAGES = {1: "[batch, length, channels]", 2: "[batch, height, width, channels]"}
"""What slides over as many dimensions takes and gives."""

PADDING = Attr(
    "padding",
    Literal["valid", "same"] | int | list[list[int]],
    "valid: none; same: as much as makes ⌈size / stride⌉ outputs, an odd one behind; an"
    " int: so much on every side; or [before, after] for each dimension",
    default="valid",
)
STRIDES = Attr(
    "strides",
    int | list[int],
    "the steps of the window: an int, or one for each dimension",
    default=1,
)
DILATION = Attr(
    "dilation",
    int | list[int],
    "the steps inside the window, likewise",
    default=1,
)


@dataclass(frozen=True, slots=True)
class Window:
    """What slides along one dimension; `low` and `high` are the padding at its ends.

    Tap k of output i is element `i · stride + k · dilation - low`, which is padding
    where there is none.
    """

    size: int
    stride: int = 1
    dilation: int = 1
    low: int = 0
    high: int = 0

    @property
    def reach(self) -> int:
        """The elements from the first tap to the last."""
        return (self.size - 1) * self.dilation + 1

    def outputs(self, size: int) -> int:
        """How often it fits into that many elements; none or less when it does not."""
        return (size + self.low + self.high - self.reach) // self.stride + 1

    def inside(self, size: int) -> tuple[int, ...]:
        """For each output, how many of its taps are elements and not padding."""
        starts = (i * self.stride - self.low for i in range(self.outputs(size)))
        return tuple(self._taps(start, size) for start in starts)

    def _taps(self, start: int, size: int) -> int:
        first = -(min(0, start) // self.dilation)
        last = min(self.size - 1, (size - 1 - start) // self.dilation)
        return max(0, last - first + 1)


def each(kind: str, name: str, value: Sizes, dims: int) -> tuple[int, ...]:
    """One int from 1 on for each dimension; OpError names the attribute."""
    found = (value,) * dims if isinstance(value, int) else tuple(value)
    if len(found) != dims or any(n < 1 for n in found):
        wanted = "an int" if dims == 1 else f"an int or a list of {dims} ints"
        given = value if isinstance(value, int) else list(value)
        raise OpError(f"{kind} needs {name} {wanted} from 1 on, not {given}", attr=name)
    return found


def windows(
    kind: str,
    image: Sequence[int],
    sizes: Sequence[int],
    strides: Sizes,
    padding: Padding,
    dilation: Sizes = 1,
) -> tuple[Window, ...]:
    """What slides over an image of those sizes; OpError for an attribute at fault."""
    dims = len(image)
    bare = [
        Window(*given)
        for given in zip(
            sizes,
            each(kind, "strides", strides, dims),
            each(kind, "dilation", dilation, dims),
            strict=True,
        )
    ]
    pairs = _pairs(kind, padding, bare, image)
    return tuple(
        replace(window, low=low, high=high)
        for window, (low, high) in zip(bare, pairs, strict=True)
    )


def _pairs(
    kind: str, padding: Padding, bare: Sequence[Window], image: Sequence[int]
) -> Sequence[Sequence[int]]:
    if padding == "valid":
        return [(0, 0)] * len(bare)
    if padding == "same":
        return [_same(window, size) for window, size in zip(bare, image, strict=True)]
    if isinstance(padding, str):
        raise OpError(
            f"{kind} cannot have padding: {padding}",
            attr="padding",
            hint=did_you_mean(padding, ("valid", "same")),
        )
    found = [(padding, padding)] * len(bare) if isinstance(padding, int) else padding
    if len(found) != len(bare) or any(len(p) != 2 or min(p) < 0 for p in found):
        given = padding if isinstance(padding, int) else [list(p) for p in padding]
        raise OpError(
            f"{kind} needs a padding of 0 or more on every side, not {given}",
            attr="padding",
            hint="write valid, same, an int, or [before, after] for each of"
            f" {len(bare)} dimension{'s' if len(bare) > 1 else ''}",
        )
    return found


def _same(window: Window, size: int) -> tuple[int, int]:
    last = (-(-size // window.stride) - 1) * window.stride
    total = max(0, last + window.reach - size)
    return total // 2, total - total // 2


def enlarged(
    kind: str,
    image: Sequence[int],
    sizes: Sequence[int],
    strides: Sizes,
    padding: Padding,
    dilation: Sizes = 1,
) -> tuple[int, ...]:
    """The sizes of an image that such windows make this one of: the transpose's result.

    Where several do, the largest without padding and `size · stride` for same, as in
    Keras, and the smallest for a padding in numbers, as in PyTorch.
    """
    bare = windows(kind, image, sizes, strides, "valid", dilation)
    least = [(n - 1) * w.stride + w.reach for w, n in zip(bare, image, strict=True)]
    if padding == "valid":
        gaps = [max(0, w.stride - w.reach) for w in bare]
        return tuple(n + gap for n, gap in zip(least, gaps, strict=True))
    if padding == "same":
        return tuple(n * w.stride for w, n in zip(bare, image, strict=True))
    pairs = _pairs(kind, padding, bare, image)
    found = tuple(n - sum(pair) for n, pair in zip(least, pairs, strict=True))
    if min(found) < 1:
        raise OpError(
            f"{kind} takes a padding of {[list(pair) for pair in pairs]} off a result"
            f" of {least}",
            attr="padding",
        )
    return found


def bins(size: int, number: int) -> tuple[tuple[int, int], ...]:
    """Where each of `number` windows begins and ends that together cover `size`
    elements: as even as possible, each end rounded outward, as in PyTorch."""
    return tuple(
        (i * size // number, -(-(i + 1) * size // number)) for i in range(number)
    )


def image_of(kind: str, types: Types, dims: int) -> tuple[tuple[int, ...], int]:
    """The sizes and the channels of operand x; OpError when it is no image."""
    x = types[0]
    if not x.is_float or x.rank != dims + 2 or {BATCH, 0} & {*x.shape[1:]}:
        raise OpError(
            f"{kind} needs a float operand {IMAGES[dims]} as 'x', not {x}",
            operand=0,
            hint=_channels(x, dims),
        )
    *sizes, channels = (int(d) for d in x.shape[1:])
    return tuple(sizes), channels


def _channels(x: TensorType, dims: int) -> str | None:
    if x.is_float and x.rank == dims + 1 and BATCH not in x.shape[1:]:
        sizes = ", ".join(map(str, x.shape))
        return f"reshape it to [{sizes}, 1] where it has one channel"
    return None


def outputs(kind: str, slid: Sequence[Window], image: Sequence[int]) -> tuple[int, ...]:
    """The sizes of what the windows make of an image; OpError when one does not fit."""
    found = tuple(w.outputs(size) for w, size in zip(slid, image, strict=True))
    for window, size, number in zip(slid, image, found, strict=True):
        if number < 1:
            raise OpError(
                f"{kind} has a window of {window.reach} where 'x' has"
                f" {size + window.low + window.high} elements",
                operand=0,
                hint="padding: same lets it reach over the ends",
            )
    return found


def pairs(slid: Sequence[Window], image: Sequence[int]) -> int:
    """How many times a tap of an output is an element and not padding."""
    return prod(sum(w.inside(size)) for w, size in zip(slid, image, strict=True))
