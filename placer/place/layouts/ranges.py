"""Flat ranges: which elements of a value each node of a place holds, in layout F.

The values of a group, such as the gradients of one optimizer, are divided as one flat
array. Each of n nodes holds an n-th of it, in the order of the place. So most values
are whole on one node, and at most n - 1 values are divided. Boundaries are multiples of
64 bytes, so ranges need no copy. Small values are not divided, nor are parameters that
an optimizer updates as a whole.

Only this module computes ranges: the compiler counts bytes with it, and the runtime
sends by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct

ALIGNMENT = 64
"""Boundaries within a value are multiples of this number of bytes."""
WHOLE_BELOW = 16 << 10
"""A value of fewer bytes is not divided."""


class Flat(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The position of a value in its group: from element `at` on, of `total`
    elements. A value that is `whole` is not divided.
    """

    at: Annotated[int, Meta(ge=0)]
    total: Annotated[int, Meta(ge=1)]
    whole: bool = False


class Ranges(Struct, frozen=True):
    """The ranges of one value in layout F.

    Attributes:
        flat: The position of the value in its group.
        numel: The number of its elements.
        item_bytes: The bytes of an element.
        parts: The number of nodes.

    Example:
        >>> one = Ranges(Flat(at=0, total=16384), numel=16000, item_bytes=4, parts=2)
        >>> one.of(0), one.of(1)
        ((0, 8192), (8192, 16000))
        >>> other = Ranges(Flat(at=16000, total=16384), 384, 4, parts=2)
        >>> other.of(0), other.of(1)
        ((0, 0), (0, 384))
    """

    flat: Flat
    numel: int
    item_bytes: int
    parts: int

    def of(self, part: int) -> tuple[int, int]:
        """Return the elements [low, high) of a node, by its index in the place."""
        if self.flat.whole or self.numel * self.item_bytes < WHOLE_BELOW:
            return (0, self.numel) if part == self._owner else (0, 0)
        return self._boundary(part), self._boundary(part + 1)

    def owned(self) -> Iterator[tuple[int, int, int]]:
        """Yield (node index, low, high) for each non-empty range, in element order."""
        at, total = self.flat.at, self.flat.total
        first = max(0, at * self.parts // total - 1)
        last = min(self.parts, (at + self.numel) * self.parts // total + 2)
        for part in range(first, last):
            low, high = self.of(part)
            if low < high:
                yield part, low, high

    @property
    def _owner(self) -> int:
        """The node that holds an undivided value: its part contains the value's
        middle.
        """
        middle = 2 * self.flat.at + self.numel
        return min(self.parts - 1, middle * self.parts // (2 * self.flat.total))

    def _boundary(self, part: int) -> int:
        """Return the first element of a node, if the value is divided."""
        element = part * self.flat.total // self.parts - self.flat.at
        if element >= self.numel:
            return self.numel
        line = ALIGNMENT // self.item_bytes
        return max(0, min(self.numel, (element + line // 2) // line * line))


def pack(sizes: Sequence[int]) -> list[Flat]:
    """Return the position of each value in its group, given the numbers of elements."""
    total, at, flats = sum(sizes), 0, []
    for size in sizes:
        flats.append(Flat(at, total))
        at += size
    return flats


def count_sent(ranges: Ranges, sources: Sequence[str], targets: Sequence[str]) -> int:
    """Return how many elements cross between nodes when ranges are joined at each
    target. The reverse has the same count: the targets' partial values, summed in
    ranges at the sources."""
    positions = set(targets)
    own = sum(
        high - low for part, low, high in ranges.owned() if sources[part] in positions
    )
    return len(targets) * ranges.numel - own
