"""Which rows of a batch a place holds, and what moves when a value changes layout.

This is the one table of conversions (design 4): the compiler counts with it and the
runtime sends by it. No numpy here: row ranges only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placer.graph.graph import Layout
from placer.place import HETER

Range = tuple[int, int]


def part(count: int, index: int, parts: int) -> Range:
    """The rows [low, high) of part `index` of `parts` of `count` rows.

    Contiguous, as even as possible, the first parts longer; a part may be empty.
    """
    size, longer = divmod(count, parts)
    low = index * size + min(index, longer)
    return low, low + size + (index < longer)


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


def shares(hosts: Sequence[str], workers: int) -> tuple[Share, ...]:
    """How a batch is split over these hosts: each has a part, in their order. Of nodes
    that compute for so many workers, the i-th of m has the parts of the workers i, i + m
    and so on, in the order of the workers."""
    n = len(hosts)
    if workers and hosts[0].startswith(f"{HETER}:"):
        return tuple(Share(tuple(range(i, workers, n)), workers) for i in range(n))
    return tuple(Share((i,), n) for i in range(n))


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
    match layouts:
        case "R", "R":
            return (Piece(_holder(sources, target)),)
        case "S", "R":
            return tuple(
                Piece(source, low, high, at, low, whole=False)
                for source, low, high, at in _held(sources, count, workers)
            )
        case "P", "R":
            return tuple(Piece(source) for source in sources)
        case "R", "S":
            return tuple(
                Piece(_holder(sources, target), low, high, low, at, whole=False)
                for low, high, at in _of(target, targets, count, workers)
            )
        case "S", "S":
            return tuple(
                Piece(
                    source, max(low, a), min(high, b),
                    max(low, a) - a + there, max(low, a) - low + here, whole=False,
                )
                for low, high, here in _of(target, targets, count, workers)
                for source, a, b, there in _held(sources, count, workers)
                if min(high, b) > max(low, a)
            )  # fmt: skip
        case "P", "S":
            return tuple(
                Piece(source, low, high, low, at, whole=False)
                for low, high, at in _of(target, targets, count, workers)
                for source in sources
            )
        case "R", "P":
            counts = next((t for t in targets if t in sources), targets[0])
            return (Piece(_holder(sources, target)),) if target == counts else ()
        case "S", "P":
            return tuple(
                Piece(source, low, high, at, low, whole=False)
                for source, low, high, at in _held(sources, count, workers)
                if _keeper(source, targets) == target
            )
        case "P", "P":
            return tuple(
                Piece(source)
                for source in sources
                if _keeper(source, targets) == target
            )
    raise AssertionError(layouts)


def is_local(
    layouts: tuple[Layout, Layout],
    sources: Sequence[str],
    targets: Sequence[str],
    workers: int,
) -> bool:
    """Whether the conversion moves nothing between hosts."""
    count = len(sources) * len(targets) * max(1, workers)  # every part has rows
    return all(
        piece.source == target
        for target in targets
        for piece in pieces(layouts, sources, targets, target, count, workers)
    )


def _holder(sources: Sequence[str], target: str) -> str:
    """Who gives a replicated value to `target`: itself where it can, else the first."""
    return target if target in sources else sources[0]


def _keeper(source: str, targets: Sequence[str]) -> str:
    """Which target takes over what `source` adds to a sum."""
    return source if source in targets else targets[0]


def _of(
    host: str, hosts: Sequence[str], count: int, workers: int
) -> Iterator[tuple[int, int, int]]:
    """The ranges that one of these hosts holds, and where each begins in what it has."""
    at = 0
    for low, high in shares(hosts, workers)[hosts.index(host)].ranges(count):
        yield low, high, at
        at += high - low


def _held(
    hosts: Sequence[str], count: int, workers: int
) -> Iterator[tuple[str, int, int, int]]:
    """The same of all of them."""
    for host in hosts:
        for low, high, at in _of(host, hosts, count, workers):
            yield host, low, high, at
