"""The rows of one lane of a `python:` stream, which a thread reads ahead."""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from placer.errors import DataError
from placer.plan.settings.data.lanes import LanePosition
from placer.readers.streams.mark import Mark
from placer.system.owned_threads import OwnedThreads

if TYPE_CHECKING:
    from placer.readers.streams.lane_source import Block, LaneSource

_BLOCKS, _PARTS = 2, 2
"""The number of blocks to read ahead, or more if they do not fill two parts of batches."""
SMALL: Final = 1 << 18
_MANY_PARTS: Final = 32
"""Small blocks are read further ahead, so that nodes rarely meet: the largest size in bytes, and the
largest number of parts."""

_SAME_ROWS: Final = "from one mark, the function must yield the same rows each time"


class Arrived(NamedTuple):
    """The rows of a lane that have arrived.

    Attributes:
        parts: the number of parts of batches since the first one.
        has_ended: whether no further rows follow.
    """

    parts: int
    has_ended: bool


class Lane:
    """The rows of a lane. One thread takes them, and another one reads ahead.

    Attributes:
        digests: the CRC-32 of the values of all taken rows, by input, to compare with other
            processes; empty if they are not compared.
    """

    def __init__(
        self,
        source: LaneSource,
        lane: int,
        part: int,
        start: LanePosition,
        digests: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Start to read a lane.

        Args:
            source: the function.
            lane: the number of the lane.
            part: the number of rows to take at a time.
            start: the position to begin with.
            digests: the digests of the rows that were taken before `start`.
        """
        self.digests = dict(digests)
        self._source, self._lane, self._part, self._start = source, lane, part, start
        self._mark, self._rows = start.mark, 0
        self._since_mark: dict[str, int] = {}
        self._block: Block = {}
        self._at = self._end = 0  # the rows of the block that were not taken yet
        self._waiting: deque[Block | Mark] = deque()
        self._waiting_rows = self._waiting_blocks = self._waiting_nbytes = 0
        self._arrived = 0  # all rows after the start
        self._has_ended = self._is_stopped = False
        self._threads = OwnedThreads()
        self._threads.begin(self._run, f"placer lane {lane}")

    @property
    def position(self) -> LanePosition:
        """The position after the last taken row."""
        return LanePosition(self._mark, self._rows, dict(self._since_mark))

    def take(self, out: Mapping[str, np.ndarray]) -> None:
        """Take the next part: write its rows to arrays, [part, *shape].

        Raises:
            DataError: if a block does not fit the inputs, the rows after the mark are not those
                that were trained, or the function has returned before.
            RunError: if the function raises.
        """
        is_compared = self._source.request.options.with_digests
        self._take(self._part, out, self.digests if is_compared else None)

    def arrived(self) -> Arrived:
        """Return the rows after the start that have arrived. Safe to call from any thread."""
        with self._threads.changed:
            return Arrived(self._arrived // self._part, self._has_ended)

    def wait(self, parts: int, seconds: float) -> None:
        """Wait until parts after the start have arrived or the lane has ended, for at most `seconds`.

        Any thread may call it. Raises the error of the lane if it has failed before.
        """
        end = monotonic() + seconds
        with self._threads.changed:
            while self._arrived < parts * self._part and not self._has_ended:
                self._threads.check()
                left = end - monotonic()
                if left <= 0 or self._is_stopped:
                    return
                self._threads.changed.wait(left)

    def stop(self) -> None:
        """Stop reading ahead, without waiting for the thread."""
        with self._threads.changed:
            self._is_stopped = True
            self._threads.changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait for the thread, which may be inside the function."""
        self._threads.join(seconds)

    def _take(
        self,
        rows: int,
        out: Mapping[str, np.ndarray],
        digests: dict[str, int] | None,
    ) -> None:
        done = 0
        while done < rows:
            if self._at == self._end:
                self._next_block()
            count = min(rows - done, self._end - self._at)
            part = _part(self._block, self._at, count)
            self._note(part, digests)
            for name, values in out.items():
                values[done : done + count] = part[name]
            self._at += count
            done += count

    def _note(self, rows: Block, digests: dict[str, int] | None) -> None:
        """Move the position after rows, and add them to digests."""
        for name, values in rows.items():
            octets = values.reshape(-1).view(np.uint8).data  # also of bfloat16
            for each in (self._since_mark, digests):
                if each is not None:
                    each[name] = zlib.crc32(octets, each.get(name, 0))
        self._rows += _count(rows)

    def _pass(self, mark: Mark) -> None:
        """Move the position after a mark."""
        self._mark, self._rows, self._since_mark = mark.state, 0, {}

    def _next_block(self) -> None:
        """Wait for a block with rows, and pass the marks before it."""
        while isinstance(item := self._next_item(), Mark):
            self._pass(item)
        self._block, self._at, self._end = item, 0, _count(item)

    def _next_item(self) -> Block | Mark:
        with self._threads.changed:
            self._wait_for(lambda: self._waiting)
            item = self._waiting.popleft()
            if not isinstance(item, Mark):
                self._waiting_rows -= _count(item)
                self._waiting_blocks -= 1
                self._waiting_nbytes -= _nbytes(item)
            if self._has_room(0.5):  # so that the thread wakes rarely
                self._threads.changed.notify_all()
            return item

    def _wait_for(self, is_ready: Callable[[], object]) -> None:
        """Wait, with `changed` held. Raises DataError at the end of the lane."""
        while not is_ready():
            self._threads.check()
            if self._has_ended:
                # A run takes only rows that have arrived or that it has trained before.
                raise DataError(
                    f"{self._source.where(self._lane)} has ended before rows that were trained",
                    hint=_SAME_ROWS,
                )
            if self._is_stopped:
                raise RuntimeError("the lane is closed")
            self._threads.changed.wait()

    def _run(self) -> None:
        changed = self._threads.changed
        with closing(self._source.read(self._lane, self._start.mark)) as items:
            for item in self._after_start(items):
                with changed:
                    self._add(item)
                    changed.notify_all()
                    if not self._has_room():
                        changed.wait_for(
                            lambda: self._is_stopped or self._has_room(0.5)
                        )
                    if self._is_stopped:
                        return
        with changed:
            self._has_ended = True

    def _after_start(self, items: Iterator[Block | Mark]) -> Iterator[Block | Mark]:
        """Yield the items after the start, and compare the rows before it with those that were
        trained."""
        start, left, digests = self._start, self._start.rows, dict[str, int]()
        for item in items:
            if left == 0:
                yield item
            elif isinstance(item, Mark):
                self._pass(item)
            else:
                count = min(left, _count(item))
                self._note(_part(item, 0, count), digests)
                left -= count
                if left == 0:
                    if any(start.digests.get(n, d) != d for n, d in digests.items()):
                        raise self._other_rows("does not have the same")
                    yield _part(item, count, _count(item) - count)
        if left:
            raise self._other_rows("has fewer rows than the")

    def _other_rows(self, differs: str) -> DataError:
        start, after = self._start, "at its start"
        if start.mark is not None:
            after = f"after the mark {_shortened(start.mark)}"
        return DataError(
            f"{self._source.where(self._lane)} {differs} {start.rows} rows {after} that were"
            " trained",
            hint=_SAME_ROWS,
        )

    def _add(self, item: Block | Mark) -> None:
        if isinstance(item, Mark):
            if self._waiting and isinstance(self._waiting[-1], Mark):
                self._waiting.pop()
            self._waiting.append(item)
        elif rows := _count(item):
            self._waiting.append(item)
            self._waiting_rows += rows
            self._waiting_blocks += 1
            self._waiting_nbytes += _nbytes(item)
            self._arrived += rows

    def _has_room(self, share: float = 1.0) -> bool:
        """Whether to read ahead. Small blocks may fill a share of their limits."""
        rows = self._waiting_rows
        return (
            rows < _PARTS * self._part
            or self._waiting_blocks < _BLOCKS
            or (
                rows < share * _MANY_PARTS * self._part
                and self._waiting_nbytes < share * SMALL
            )
        )


def _shortened(mark: Any) -> str:
    text = json.dumps(mark)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _part(block: Block, first: int, count: int) -> Block:
    return {name: values[first : first + count] for name, values in block.items()}


def _nbytes(block: Block) -> int:
    return sum(values.nbytes for values in block.values())


def _count(block: Block) -> int:
    return len(next(iter(block.values())))
