"""Which rows of a batch a place holds, and what moves when a value changes layout.

This is the one table of conversions (design 4): the compiler counts with it and the
runtime sends by it. No numpy here: row ranges only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placer.graph.graph import Layout

Range = tuple[int, int]


def part(count: int, index: int, parts: int) -> Range:
    """The rows [low, high) of part `index` of `parts` of `count` rows.

    Contiguous, as even as possible, the first parts longer; a part may be empty.
    """
    size, longer = divmod(count, parts)
    low = index * size + min(index, longer)
    return low, low + size + (index < longer)


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
) -> tuple[Piece, ...]:
    """What `target` needs, in the order in which it is put together.

    `layouts` are the value's on `sources` and on `targets`; `count` is the number of
    rows of the global value (any number for a value without rows). Pieces of a P value
    are added up in this order; a target of a P layout without a piece holds zeros.
    """
    match layouts:
        case "R", "R":
            return (Piece(_holder(sources, target)),)
        case "S", "R":
            return tuple(
                Piece(source, low, high, 0, low, whole=False)
                for source, (low, high) in _parts(sources, count)
                if high > low
            )
        case "P", "R":
            return tuple(Piece(source) for source in sources)
        case "R", "S":
            low, high = part(count, targets.index(target), len(targets))
            return (Piece(_holder(sources, target), low, high, low, 0, whole=False),)
        case "S", "S":
            low, high = part(count, targets.index(target), len(targets))
            return tuple(
                Piece(
                    source, max(low, a), min(high, b), max(low, a) - a, max(low, a) - low,
                    whole=False,
                )
                for source, (a, b) in _parts(sources, count)
                if min(high, b) > max(low, a)
            )  # fmt: skip
        case "P", "S":
            low, high = part(count, targets.index(target), len(targets))
            return tuple(
                Piece(source, low, high, low, 0, whole=False) for source in sources
            )
        case "R", "P":
            counts = next((t for t in targets if t in sources), targets[0])
            return (Piece(_holder(sources, target)),) if target == counts else ()
        case "S", "P":
            return tuple(
                Piece(source, low, high, 0, low, whole=False)
                for source, (low, high) in _parts(sources, count)
                if high > low and _keeper(source, targets) == target
            )
        case "P", "P":
            return tuple(
                Piece(source)
                for source in sources
                if _keeper(source, targets) == target
            )
    raise AssertionError(layouts)


def is_local(
    layouts: tuple[Layout, Layout], sources: Sequence[str], targets: Sequence[str]
) -> bool:
    """Whether the conversion moves nothing between hosts."""
    count = len(sources) * len(targets)  # every part has rows
    return all(
        piece.source == target
        for target in targets
        for piece in pieces(layouts, sources, targets, target, count)
    )


def _holder(sources: Sequence[str], target: str) -> str:
    """Who gives a replicated value to `target`: itself where it can, else the first."""
    return target if target in sources else sources[0]


def _keeper(source: str, targets: Sequence[str]) -> str:
    """Which target takes over what `source` adds to a sum."""
    return source if source in targets else targets[0]


def _parts(sources: Sequence[str], count: int) -> list[tuple[str, Range]]:
    n = len(sources)
    return [(source, part(count, i, n)) for i, source in enumerate(sources)]
