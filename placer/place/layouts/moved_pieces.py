"""Computes the data that moves between nodes when a value changes layout or place.

This is the only table of conversions: the compiler counts bytes with it, and the
runtime sends by it. It handles ranges of rows. This module imports neither numpy nor
JAX.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from msgspec import Struct

from placer.place.layouts import Layout
from placer.place.layouts.partition import PartitionedNodes


class Piece(Struct, frozen=True):
    """Data that a target needs from a source: the whole array, or rows [low, high).

    If `is_whole`, the piece is the source's whole array, and the row numbers are
    unused. Otherwise row `low` of the global value is row `source_offset` of the
    source's array, and row `target_offset` of the target's array.
    """

    source: str
    low: int = 0
    high: int = 0
    source_offset: int = 0
    target_offset: int = 0
    is_whole: bool = True


class Conversion:
    """The data that each target of a value needs from its sources.

    Companions (a worker and its heter node, or threads of one process) exchange data
    with each other if several sources or targets would do.

    Data that all targets share is computed once: asking for each of n targets must not
    take n² steps.

    Args:
        layouts: The layouts of the value on `sources` and on `targets`.
        sources, targets: The nodes that hold the value, and the nodes that receive it.
        count: The number of rows of the global value; any number for a value without
            rows.
        workers: The number of nodes of kind `worker`.
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
        """Return the pieces for one target, in the order in which they are joined or
        added. A target of layout P without pieces holds zeros."""
        if "S" not in self._layouts:
            return tuple(map(Piece, self._sources_for(target)))
        # In R and P, an array has all rows of the global value.
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
        """Return (source, low, high, offset) for each range of a source that overlaps
        the rows [low, high). Ranges are not clipped."""
        match self._layouts:
            case "S", "P":
                sources = self._sources_of.get(target, ())
                return ((s, *each) for s in sources for each in self._sources.ranges(s))
            case "S", _:
                return self._sources.ranges_within(low, high)
        return ((source, 0, self._count, 0) for source in self._sources_for(target))

    def _sources_for(self, target: str) -> Sequence[str]:
        match self._layouts:
            # The sum must count the value once: other targets hold zeros.
            case "R", "P":
                is_holder = target == self._only_holder
                return [self._replica_for(target)] if is_holder else []
            case "R", _:
                return [self._replica_for(target)]
            case "P", "P":
                return self._sources_of.get(target, ())
        return self._sources.names

    def _replica_for(self, target: str) -> str:
        """Return the source of a replicated value: the target if it holds the value,
        else its companion, else the first source."""
        if target in self._sources.positions:
            return target
        companion = self._sources.companion_of(target, self._targets)
        return companion or self._sources.names[0]

    @cached_property
    def _only_holder(self) -> str:
        """The only target that receives a replicated value; other targets hold zeros.
        Prefers a target that already holds it, so that no data moves."""
        names = self._targets.names
        return next(
            (name for name in names if name in self._sources.positions), names[0]
        )

    @cached_property
    def _sources_of(self) -> dict[str, list[str]]:
        """The sources whose part of a sum each target receives. A node that is a source
        and a target keeps its part. A companion receives its companion's part. The
        first target receives all other parts."""
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
    """Return True if the conversion moves no data between nodes, for any batch size."""
    # With this number of rows, no part is empty.
    count = len(sources) * len(targets) * max(1, workers)
    conversion = Conversion(layouts, sources, targets, count, workers)
    return all(
        piece.source == target
        for target in targets
        for piece in conversion.pieces_for(target)
    )
