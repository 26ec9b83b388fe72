"""What moves between nodes when a value changes its layout or its place.

This is the only table of conversions: the compiler counts bytes with it, and the
runtime sends by it. Row ranges only: this module imports neither numpy nor JAX.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from msgspec import Struct

from placer.place.layouts import Layout
from placer.place.layouts.partition import PartitionedNodes


class Piece(Struct, frozen=True):
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


class Conversion:
    """What each target of a value needs from its sources.

    A worker and the heter node that has its rows are companions, and so are threads of
    one process: what all sources have, or what goes to any target, goes from companion
    to companion.

    What the targets have in common is computed once, so that asking for each of n
    targets does not take n² steps.

    Args:
        layouts: those of the value on `sources` and on `targets`.
        sources, targets: the nodes that have the value, and those that get it.
        count: the number of rows of the global value; any number for a value without
            rows.
        workers: the number of nodes of kind `worker`.
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
        """Return what one target needs, in the order in which it is concatenated or
        summed.

        Pieces of a P value are added up in this order; a target of layout P without a
        piece has zeros.
        """
        if "S" not in self._layouts:
            return tuple(map(Piece, self._sources_for(target)))
        # In R and P, each row is at its number in the global value.
        wanted: Sequence[tuple[int, int, int]] = [(0, self._count, 0)]
        if self._layouts[1] == "S":
            wanted = self._targets.ranges(target)
        return tuple(
            Piece(
                source, max(low, a), min(high, b),
                max(low, a) - a + source_offset, max(low, a) - low + target_offset,
                is_whole=False,
            )
            for low, high, target_offset in wanted
            for source, a, b, source_offset in self._source_ranges(target, low, high)
        )  # fmt: skip

    def _source_ranges(
        self, target: str, low: int, high: int
    ) -> Iterable[tuple[str, int, int, int]]:
        """Return (source, low, high, offset) for each row range of a source that a
        target needs for some of its rows. The ranges are not clipped to these rows."""
        match self._layouts:
            case "S", "P":
                sources = self._sources_of.get(target, ())
                return ((s, *each) for s in sources for each in self._sources.ranges(s))
            case "S", _:
                return self._sources.ranges_within(low, high)
        return ((source, 0, self._count, 0) for source in self._sources_for(target))

    def _sources_for(self, target: str) -> Sequence[str]:
        """Return the sources from which a target needs something, of R or P."""
        match self._layouts:
            case "R", "P":  # the value counts once in the sum: the rest are zeros
                is_holder = target == self._only_holder
                return [self._replica_for(target)] if is_holder else []
            case "R", _:
                return [self._replica_for(target)]
            case "P", "P":
                return self._sources_of.get(target, ())
        return self._sources.names

    def _replica_for(self, target: str) -> str:
        """Return the source of a replicated value: the target itself if it has the
        value, else its companion, else the first source."""
        if target in self._sources.positions:
            return target
        companion = self._sources.companion_of(target, self._targets)
        return companion or self._sources.names[0]

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
        and a target keeps its part, a companion gets that of its companion, and the
        first target gets all other parts."""
        sources_of: dict[str, list[str]] = {}
        for source in self._sources.names:
            target = source
            if source not in self._targets.positions:
                companion = self._targets.companion_of(source, self._sources)
                target = companion or self._targets.names[0]
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
