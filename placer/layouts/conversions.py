"""Which rows of a batch a place holds, and what moves when a value changes layout.

This is the one table of conversions (design 4): the compiler counts with it and the
runtime sends by it. No numpy here: row ranges only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from placer.layouts import Layout
from placer.place import HETER

Range = tuple[int, int]


def part(count: int, index: int, parts: int) -> Range:
    """The rows [low, high) of part `index` of `parts` of `count` rows.

    Contiguous, as even as possible, the first parts longer; a part may be empty.
    """
    size, longer = divmod(count, parts)
    low = index * size + min(index, longer)
    return low, low + size + (index < longer)


def _part_of(row: int, count: int, parts: int) -> int:
    """The index of the part that has a row of `count`."""
    size, longer = divmod(count, parts)
    of_longer = longer * (size + 1)
    if row < of_longer:
        return row // (size + 1)
    return longer + (row - of_longer) // size


@dataclass(frozen=True, slots=True)
class Share:
    """The rows that one of several places holds of a batch: those of the parts `own`, of
    so many `parts`, in their order."""

    own: tuple[int, ...]
    parts: int

    def ranges(self, count: int) -> tuple[Range, ...]:
        """The rows, of a batch of `count`; none is empty."""
        found = (part(count, index, self.parts) for index in self.own)
        return tuple((low, high) for low, high in found if high > low)

    def size(self, count: int) -> int:
        """How many rows that are."""
        return sum(high - low for low, high in self.ranges(count))


def shares(nodes: Sequence[str], workers: int) -> tuple[Share, ...]:
    """How a batch is split over these nodes: each has a part, in their order. Of nodes
    that compute for so many workers, the i-th of m has the parts of the workers i, i + m
    and so on, in the order of the workers."""
    return tuple(share_of(nodes, i, workers) for i in range(len(nodes)))


def share_of(nodes: Sequence[str], index: int, workers: int) -> Share:
    """The share of one of them."""
    n = len(nodes)
    if _dealt(nodes, workers):
        return Share(tuple(range(index, workers, n)), workers)
    return Share((index,), n)


def _dealt(nodes: Sequence[str], workers: int) -> bool:
    """Whether the nodes have the rows of workers, for whom they compute."""
    return bool(workers) and nodes[0].startswith(f"{HETER}:")


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [low, high) of the global value, held by `source`, that a target needs.

    `whole` pieces have no rows: the value itself. `offset` is where the piece begins
    in what the source holds, `into` where it begins in what the target holds.
    """

    source: str
    low: int = 0
    high: int = 0
    offset: int = 0
    into: int = 0
    whole: bool = True


def pieces(
    layouts: tuple[Layout, Layout],
    sources: Sequence[str],
    targets: Sequence[str],
    target: str,
    count: int,
    workers: int,
) -> tuple[Piece, ...]:
    """What `target` needs, in the order in which it is put together.

    `layouts` are the value's on `sources` and on `targets`; `count` is the number of
    rows of the global value (any number for a value without rows), `workers` that of the
    nodes of kind `worker`. Pieces of a P value are added up in this order; a target of a
    P layout without a piece holds zeros.
    """
    return Conversion(layouts, sources, targets, count, workers).pieces(target)


class Conversion:
    """The same for all targets: asking for each of n takes no n steps for itself."""

    def __init__(
        self,
        layouts: tuple[Layout, Layout],
        sources: Sequence[str],
        targets: Sequence[str],
        count: int,
        workers: int,
    ) -> None:
        self._layouts = layouts
        self._sources = _Nodes(sources, count, workers)
        self._targets = _Nodes(targets, count, workers)
        self._count = count

    def pieces(self, target: str) -> tuple[Piece, ...]:
        """What this target needs."""
        sources, targets = self._sources, self._targets
        match self._layouts:
            case "R", "R":
                return (Piece(self._holder(target)),)
            case "S", "R":
                return tuple(
                    Piece(source, low, high, at, low, whole=False)
                    for source, low, high, at in sources.held(0, self._count)
                )
            case "P", "R":
                return tuple(Piece(source) for source in sources.names)
            case "R", "S":
                return tuple(
                    Piece(self._holder(target), low, high, low, at, whole=False)
                    for low, high, at in targets.ranges(target)
                )
            case "S", "S":
                return tuple(
                    Piece(
                        source, max(low, a), min(high, b),
                        max(low, a) - a + there, max(low, a) - low + here, whole=False,
                    )
                    for low, high, here in targets.ranges(target)
                    for source, a, b, there in sources.held(low, high)
                )  # fmt: skip
            case "P", "S":
                return tuple(
                    Piece(source, low, high, low, at, whole=False)
                    for low, high, at in targets.ranges(target)
                    for source in sources.names
                )
            case "R", "P":
                return (Piece(self._holder(target)),) if target == self._one else ()
            case "S", "P":
                return tuple(
                    Piece(source, low, high, at, low, whole=False)
                    for source in self._kept.get(target, ())
                    for low, high, at in sources.ranges(source)
                )
            case "P", "P":
                return tuple(Piece(source) for source in self._kept.get(target, ()))
        raise AssertionError(self._layouts)

    def _holder(self, target: str) -> str:
        """Who gives a replicated value to `target`: itself where it can, else the
        first."""
        return target if target in self._sources.at else self._sources.names[0]

    @cached_property
    def _one(self) -> str:
        """The target that holds a replicated value of which the others hold zeros."""
        names = self._targets.names
        return next((name for name in names if name in self._sources.at), names[0])

    @cached_property
    def _kept(self) -> dict[str, list[str]]:
        """The sources whose part of a sum each target takes over."""
        found: dict[str, list[str]] = {}
        for source in self._sources.names:
            keeper = source if source in self._targets.at else self._targets.names[0]
            found.setdefault(keeper, []).append(source)
        return found


class _Nodes:
    """Nodes over which the rows of a batch may be split, and where each stands."""

    def __init__(self, names: Sequence[str], count: int, workers: int) -> None:
        self.names = names
        self._count = count
        self._workers = workers
        self._ranges: dict[str, list[tuple[int, int, int]]] = {}

    @cached_property
    def at(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def ranges(self, name: str) -> Sequence[tuple[int, int, int]]:
        """The rows that one of them holds, and where each range begins in what it has."""
        found = self._ranges.get(name)
        if found is None:
            found, at = [], 0
            share = share_of(self.names, self.at[name], self._workers)
            for low, high in share.ranges(self._count):
                found.append((low, high, at))
                at += high - low
            self._ranges[name] = found
        return found

    def held(self, low: int, high: int) -> Iterator[tuple[str, int, int, int]]:
        """The ranges of all of them, in their order, that have rows of [low, high)."""
        for name in self._near(low, high):
            found = self.ranges(name)
            first = bisect_right(found, low, key=itemgetter(1))  # it ends behind `low`
            last = bisect_left(found, high, key=itemgetter(0))  # it begins behind
            for a, b, at in found[first:last]:
                yield name, a, b, at

    def _near(self, low: int, high: int) -> Sequence[str]:
        """Those that may have such rows."""
        if high <= low:
            return ()
        nodes = len(self.names)
        parts = self._workers if _dealt(self.names, self._workers) else nodes
        first = _part_of(low, self._count, parts)
        last = _part_of(high - 1, self._count, parts)
        if last - first + 1 >= nodes:
            return self.names
        return [
            self.names[i] for i in sorted(p % nodes for p in range(first, last + 1))
        ]


def is_local(
    layouts: tuple[Layout, Layout],
    sources: Sequence[str],
    targets: Sequence[str],
    workers: int,
) -> bool:
    """Whether the conversion moves nothing between nodes."""
    count = len(sources) * len(targets) * max(1, workers)  # every part has rows
    conversion = Conversion(layouts, sources, targets, count, workers)
    return all(
        piece.source == target
        for target in targets
        for piece in conversion.pieces(target)
    )
