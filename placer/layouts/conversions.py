"""What moves between nodes when a value changes its layout or its place.

This is the only table of conversions: the compiler counts bytes with it, and the
runtime sends by it. Row ranges only: this module imports neither numpy nor JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from placer.layouts import Layout
from placer.layouts.partition import PartitionedNodes


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that a target needs from a source: the value, or rows [low, high) of
    it.

    If `is_whole`, the piece is all that the source has, and the row numbers have no
    meaning. Otherwise row `low` of the global value is row `source_offset` of the array
    of the source, and row `target_offset` of the array of the target.
    """

    source: str
    low: int = 0
    high: int = 0
    source_offset: int = 0
    target_offset: int = 0
    is_whole: bool = True


def pieces_for(
    layouts: tuple[Layout, Layout],
    sources: Sequence[str],
    targets: Sequence[str],
    target: str,
    count: int,
    workers: int,
) -> tuple[Piece, ...]:
    """Return what `target` needs, in the order in which it is concatenated or summed.

    `layouts` are those of the value on `sources` and on `targets`. `count` is the
    number of rows of the global value (any number for a value without rows), `workers`
    the number of nodes of kind `worker`. Pieces of a P value are added up in this
    order; a target of layout P without a piece has zeros.
    """
    return Conversion(layouts, sources, targets, count, workers).pieces_for(target)


class Conversion:
    """`pieces_for`, for any number of targets.

    What the targets have in common is computed once, so that asking for each of n
    targets does not take n² steps.
    """

    def __init__(
        self,
        layouts: tuple[Layout, Layout],
        sources: Sequence[str],
        targets: Sequence[str],
        count: int,
        workers: int,
    ) -> None:
        self._layouts = layouts
        self._sources = PartitionedNodes(sources, count, workers)
        self._targets = PartitionedNodes(targets, count, workers)
        self._count = count

    def pieces_for(self, target: str) -> tuple[Piece, ...]:
        """Return what one target needs, in order."""
        sources, targets = self._sources, self._targets
        match self._layouts:
            case "R", "R":
                return (Piece(self._replica_for(target)),)
            case "S", "R":
                return tuple(
                    Piece(source, low, high, offset, low, is_whole=False)
                    for source, low, high, offset in sources.ranges_within(
                        0, self._count
                    )
                )
            case "P", "R":
                return tuple(Piece(source) for source in sources.names)
            case "R", "S":
                return tuple(
                    Piece(
                        self._replica_for(target),
                        low,
                        high,
                        low,
                        offset,
                        is_whole=False,
                    )
                    for low, high, offset in targets.ranges(target)
                )
            case "S", "S":  # where the ranges of the target and of a source intersect
                return tuple(
                    Piece(
                        source, max(low, a), min(high, b),
                        max(low, a) - a + a_offset, max(low, a) - low + low_offset,
                        is_whole=False,
                    )
                    for low, high, low_offset in targets.ranges(target)
                    for source, a, b, a_offset in sources.ranges_within(low, high)
                )  # fmt: skip
            case "P", "S":
                return tuple(
                    Piece(source, low, high, low, offset, is_whole=False)
                    for low, high, offset in targets.ranges(target)
                    for source in sources.names
                )
            case "R", "P":  # the value counts once in the sum: the rest are zeros
                if target != self._only_holder:
                    return ()
                return (Piece(self._replica_for(target)),)
            case "S", "P":  # rows stay at their numbers, with zeros around them
                return tuple(
                    Piece(source, low, high, offset, low, is_whole=False)
                    for source in self._sources_of.get(target, ())
                    for low, high, offset in sources.ranges(source)
                )
            case "P", "P":
                return tuple(
                    Piece(source) for source in self._sources_of.get(target, ())
                )
        raise AssertionError(self._layouts)

    def _replica_for(self, target: str) -> str:
        """Return the source of a replicated value: the target itself if it has the
        value, else the first source."""
        return target if target in self._sources.positions else self._sources.names[0]

    @cached_property
    def _only_holder(self) -> str:
        """The target that gets a replicated value when the other targets get zeros: the
        first that has it already, so that nothing moves, else the first."""
        names = self._targets.names
        return next(
            (name for name in names if name in self._sources.positions), names[0]
        )

    @cached_property
    def _sources_of(self) -> dict[str, list[str]]:
        """The sources whose part of a sum goes to each target: a node that is a source
        and a target keeps its part, and the first target gets all other parts."""
        sources_of: dict[str, list[str]] = {}
        for source in self._sources.names:
            is_target = source in self._targets.positions
            target = source if is_target else self._targets.names[0]
            sources_of.setdefault(target, []).append(source)
        return sources_of


def is_local(
    layouts: tuple[Layout, Layout],
    sources: Sequence[str],
    targets: Sequence[str],
    workers: int,
) -> bool:
    """Whether the conversion moves nothing between nodes, whatever the batch size."""
    count = len(sources) * len(targets) * max(1, workers)  # no part is empty
    conversion = Conversion(layouts, sources, targets, count, workers)
    return all(
        piece.source == target
        for target in targets
        for piece in conversion.pieces_for(target)
    )
