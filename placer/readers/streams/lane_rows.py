"""The rows of a `python:` stream on one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING

from placer.errors import DataError
from placer.place.layouts.partition import RowShard
from placer.plan.settings.data.lanes import LanePosition
from placer.plan.settings.data.source import RowSource
from placer.readers.streams.lane import Arrived
from placer.readers.streams.lane_reader import LaneReader

if TYPE_CHECKING:
    from placer.readers.streams.lane_source import LaneSource


class LaneRows:
    """The rows of a `python:` stream on one node, over all passes.

    The node has a reader for each part of a batch that it reads, since inputs on other nodes
    may have other parts. See `LaneReader` for the arguments and methods.
    """

    def __init__(
        self,
        source: LaneSource,
        data: RowSource,
        begin: tuple[int, int] = (1, 0),
        positions: Mapping[int, LanePosition] = MappingProxyType({}),
        locate: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        assert data.stream is not None
        assert data.stream.rows is not None
        self.rows, self._text = data.stream.rows, data.source
        self._make = partial(LaneReader, source, data, begin, positions, locate)
        self._readers: dict[tuple[RowShard, int], LaneReader] = {}

    def reader(self, shard: RowShard, parts: int) -> LaneReader:
        """Return the reader of a shard of a batch with a number of microbatches."""
        key = shard, parts
        if key not in self._readers:
            self._readers[key] = self._make()
        return self._readers[key]

    def arrived(self) -> dict[int, Arrived]:
        """Return the rows of each lane that have arrived for all readers of the node."""
        found: dict[int, Arrived] = {}
        for each in self._each():
            for lane, (parts, has_ended) in each.arrived().items():
                before = found.get(lane, Arrived(parts, has_ended))
                least = min(before.parts, parts)
                found[lane] = Arrived(least, before.has_ended and has_ended)
        return found

    def wait(self, batches: int, seconds: float) -> None:
        """Wait until the rows of all batches up to a number have arrived or lanes have ended, for
        at most `seconds`. Raises an error as `take`."""
        end = monotonic() + seconds
        for each in self._each():
            each.wait(batches, max(0.0, end - monotonic()))

    def trained(self, epoch: int, step: int) -> None:
        """Forget the positions before the end of a step, which has been trained."""
        for each in self._each():
            each.trained(epoch, step)

    def positions(self, epoch: int, step: int) -> dict[int, LanePosition]:
        """Return the position after a step of each lane that the node reads."""
        return {
            n: p
            for each in self._each()
            for n, p in each.positions(epoch, step).items()
        }

    def digests(self, epoch: int) -> dict[int, dict[str, int]]:
        """Return the digests of each lane at the end of an epoch, by input. Raises DataError if the
        rows of two readers differ."""
        found: dict[int, dict[str, int]] = {}
        for each in self._each():
            for lane, digests in each.digests(epoch).items():
                if found.setdefault(lane, digests) != digests:
                    raise DataError(
                        f"{self._text}: two calls for lane {lane} have yielded other rows"
                        f" in pass {epoch}",
                        hint="from one mark, the function must yield the same rows each time",
                    )
        return found

    def close(self) -> None:
        """End the threads of all lanes."""
        for each in self._each():
            each.close()

    def _each(self) -> list[LaneReader]:
        return [*self._readers.values()]
