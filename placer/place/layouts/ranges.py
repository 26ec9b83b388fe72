"""Flat ranges: which elements of a value each node of a place has, in layout F.

The values of a group, such as the gradients of one optimizer, are divided as if they
were one flat array: of n nodes in the order of the place, each has an n-th of it. So
most values are whole on one node, and at most n - 1 of them are divided. A value is
divided only at multiples of 64 bytes, so that every range can be used without a copy,
and a small one is not divided at all.

This is the only place that knows the ranges: the compiler counts bytes with it, and the
runtime sends by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct

ALIGNMENT = 64
"""The bytes of which every boundary within a value is a multiple."""
WHOLE_BELOW = 16 << 10
"""A value of fewer bytes is whole on one node."""


class Flat(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the elements of a value are among those of its group: from element `at` on,
    of `total`."""

    at: Annotated[int, Meta(ge=0)]
    total: Annotated[int, Meta(ge=1)]


class Ranges(Struct, frozen=True):
    """The ranges of one value in layout F.

    Attributes:
        flat: where the value is in its group.
        numel: the number of its elements.
        item_bytes: the bytes of an element.
        parts: the number of nodes.

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
        if self.numel * self.item_bytes < WHOLE_BELOW:
            return (0, self.numel) if part == self._owner else (0, 0)
        return self._boundary(part), self._boundary(part + 1)

    def owned(self) -> Iterator[tuple[int, int, int]]:
        """Yield (index of a node, low, high) for each range that is not empty, in the
        order of the elements."""
        at, total = self.flat.at, self.flat.total
        first = max(0, at * self.parts // total - 1)
        last = min(self.parts, (at + self.numel) * self.parts // total + 2)
        for part in range(first, last):
            low, high = self.of(part)
            if low < high:
                yield part, low, high

    @property
    def _owner(self) -> int:
        """The node of a value that is not divided: the one that its middle is on."""
        middle = 2 * self.flat.at + self.numel
        return min(self.parts - 1, middle * self.parts // (2 * self.flat.total))

    def _boundary(self, part: int) -> int:
        """The first element of a node, if the value is divided there."""
        element = part * self.flat.total // self.parts - self.flat.at
        if element >= self.numel:
            return self.numel
        line = ALIGNMENT // self.item_bytes
        return max(0, min(self.numel, (element + line // 2) // line * line))


def pack(sizes: Sequence[int]) -> list[Flat]:
    """Return where each value of a group is, from the numbers of their elements."""
    total, at, flats = sum(sizes), 0, []
    for size in sizes:
        flats.append(Flat(at, total))
        at += size
    return flats


def count_sent(ranges: Ranges, sources: Sequence[str], targets: Sequence[str]) -> int:
    """Return how many elements of a value cross between nodes when its ranges, which
    the sources have, are joined at each of the targets; or when its parts, which the
    targets have, are summed in ranges at the sources."""
    positions = set(targets)
    own = sum(
        high - low for part, low, high in ranges.owned() if sources[part] in positions
    )
    return len(targets) * ranges.numel - own
