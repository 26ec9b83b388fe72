"""The lanes of a Python stream on one node: their rows, positions and digests.

All nodes go on only up to a step whose rows have arrived on all of them. Otherwise a node that waits
for a lane inside a step could not stop, and the deadlines of the other nodes would pass. A node
reports its rows to the control node when it has reached this step; the control node announces the
next one (`stream.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from placer.channel.interface import Key
from placer.checkpoint.manifest import Progress
from placer.errors import DataError, PlacerError
from placer.place.layouts.partition import RowRange, RowShard
from placer.plan.data_positions import located, read_spans
from placer.plan.plan import Plan
from placer.plan.settings.data.lanes import LanePosition
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.sources import POSITION
from placer.readers.streams.lane_rows import LaneRows
from placer.runtime.batches.batches import own_ranges
from placer.runtime.batches.opened_sources import (
    KEYS,
    TRAINING,
    inputs_of,
    reading_of,
)
from placer.runtime.batches.passes import Passes
from placer.runtime.batches.same_rows import check_same_lanes
from placer.runtime.control.barrier import (
    LANE_DIGESTS,
    LANE_POSITIONS,
    LANES,
    receive_json,
    send_json,
)
from placer.runtime.control.events import NodeWarning
from placer.runtime.control.execution import Execution
from placer.runtime.training_loop.arrivals import Arrivals, combine
from placer.runtime.training_loop.asynchronous_tables import steps_of_workers

if TYPE_CHECKING:
    from placer.readers.streams.lane_source import LaneSource

CHECK: Final = 1.0
"""The longest time that a node waits for rows before it reports, in seconds."""
FIRST_WARNING: Final = 30.0
"""Seconds of a wait for rows after which the slowest lane is named."""
NEXT_WARNING: Final = 600.0
"""Seconds between two warnings about slow lanes."""


class Lanes:
    """One node's part in a stream of a Python function.

    Args:
        execution: the node's run.
        data: the source.
        progress: the position from which the run continues, if any.
        is_inside: whether it is inside a pass.

    Attributes:
        rows: the rows of the node's lanes; None on a node that reads none.
        last_known: the last step whose rows are known to have arrived on all nodes.
        done: the last step that this node has trained before the run. With asynchronous training,
            it may be ahead of other workers.
        sends_ahead: whether a step reads keys of the next step.
        problem: the error of a lane that has failed before its rows were needed.

    Raises:
        DataError, RunError: if the function cannot be loaded or used, with its position in the
            spec.
    """

    def __init__(
        self,
        execution: Execution,
        data: RowSource,
        progress: Progress | None,
        *,
        is_inside: bool,
    ) -> None:
        plan, me = execution.plan, execution.me
        self._execution, self._data = execution, data
        self.last_known = self._before = progress.step if progress is not None else 0
        steps = steps_of_workers(plan, progress)
        self.done = steps.get(me.name, self._before)
        edges = plan.step_edges
        self.sends_ahead = any(each.inputs for edge in edges for each in edge.values)
        self._readers = [n.name for n in plan.nodes if inputs_of(n, TRAINING)]
        self._reports = 0
        self.problem: PlacerError | None = None
        spans = read_spans(execution.folder)
        self._located = partial(located, KEYS[TRAINING], spans)
        self._is_compared = _is_shared(plan, data)
        self._check = min(CHECK, execution.options.deadline / 4)
        self._warned_at, self._has_warned_of_marks = -NEXT_WARNING, False
        self._parts = 1
        self._ranges: dict[RowShard, Sequence[RowRange]] = {}
        self.rows: LaneRows | None = None
        if me.name not in self._readers:
            return
        begin, positions = (1, 0), dict[int, LanePosition]()
        if progress is not None:
            inside = progress.epoch, progress.batches
            begin = inside if is_inside else (progress.epoch + 1, 0)
            if progress.stream is not None:
                positions = dict(enumerate(progress.stream.lanes))
        with self._located():
            source = execution.shared_rows.of_phase(TRAINING, me.name, self._open)
            self.rows = LaneRows(source, data, begin, positions, self._located)

    def open(self, shards: Sequence[RowShard], parts: int) -> None:
        """Begin to read the lanes of shards of batches or of each of their microbatches."""
        if self.rows is None:
            return
        self._parts = parts
        for shard in dict.fromkeys(shards):
            self._ranges[shard] = _ranges(shard, self._data.batch, parts)
            self.rows.reader(shard, parts).open(self._ranges[shard])

    def skip_trained(self, passes: Passes) -> None:
        """Take the rows that this node has trained in a pass ahead of other workers, so their
        positions are known."""
        if self.rows is None or not max(self._before, passes.step) < self.done:
            return
        for shard, ranges in self._ranges.items():
            reader = self.rows.reader(shard, self._parts)
            reader.take(*passes.place_of(self.done), ranges)

    def close(self) -> None:
        """End the threads of the lanes."""
        if self.rows is not None:
            self.rows.close()

    def wait(self, step: int) -> bool:
        """Wait for a short time for this node's rows of all steps up to one. Return whether they
        have arrived or cannot arrive. Keeps the error of a lane that has failed before."""
        if self.rows is None:
            return True
        batches = step - self._before
        try:
            with self._located():
                self.rows.wait(batches, self._check)
        except PlacerError as error:
            self.problem = self.problem or error
        if self.problem is not None:
            return True
        arrived = self.rows.arrived().values()
        return all(each.parts >= batches or each.has_ended for each in arrived)

    def last_before(self, step: int) -> int | None:
        """Return the last step whose rows this node has, if a lane has ended or failed before the
        rows of a later step up to `step`. Call it when `wait` for this step has returned True."""
        if self.rows is None:
            return None
        arrived = self.rows.arrived().values()
        last = self.step_of(min((each.parts for each in arrived), default=0))
        return last if arrived and last < step else None

    def report(self, step: int) -> Arrivals | None:
        """Wait for a short time for the rows of a step, and report the rows that have arrived. All
        nodes call this; the control node receives the rows of all nodes."""
        execution = self._execution
        self.wait(step)
        self._reports += 1
        key, own = Key(LANES, self._reports), self._own_report()
        kind = tuple[list[tuple[int, int, bool]], bool]
        reports = self._gather(key, (own, self.problem is not None), kind)
        if not execution.is_control:
            return None
        arrivals = combine(self._data, {n: each for n, (each, _) in reports.items()})
        if any(has_failed for _, has_failed in reports.values()):
            return arrivals._replace(has_failed=True)
        with suppress(DataError), self._located():  # attaches the position
            if arrivals.error is not None:
                raise arrivals.error
        return arrivals

    def warn_if_slow(
        self, begun: float, slowest: tuple[int, str] | None = None
    ) -> None:
        """Warn of a slow lane if the node has waited since a time for a while.

        `slowest` is the slowest lane and its node, if all nodes wait.
        """
        now, me = time.monotonic(), self._execution.me.name
        if now < max(begun + FIRST_WARNING, self._warned_at + NEXT_WARNING):
            return
        self._warned_at = now
        if slowest is not None:
            who, what = "all nodes wait", f"lane {slowest[0]} on {slowest[1]}"
        else:
            lane, _ = combine(self._data, {me: self._own_report()}).slowest
            who, what = f"{me} waits", f"lane {lane}"
        text = f"{self._data.source}: {who} for rows of {what}, for {now - begun:.0f} s so far"
        self._execution.report(NodeWarning(text))

    def step_of(self, batches: int) -> int:
        """Return the step of the last of some batches since the start of the run."""
        return self._before + batches

    def trained(self, passes: Passes, step: int) -> None:
        """Note that no checkpoint will be of an earlier step."""
        if self.rows is not None:
            self.rows.trained(*passes.place_of(step))

    def positions(self, passes: Passes, step: int) -> tuple[LanePosition, ...]:
        """Return the positions of all lanes after a step, on the control node. All nodes call
        this."""
        own: list[Any] = []
        if self.rows is not None:
            found = self.rows.positions(*passes.place_of(step))
            own = [[lane, msgspec.to_builtins(each)] for lane, each in found.items()]
        reports = self._gather(
            Key(LANE_POSITIONS, step), own, list[tuple[int, LanePosition]]
        )
        by_lane = {lane: each for report in reports.values() for lane, each in report}
        self._warn_of_marks(by_lane)
        return tuple(by_lane[lane] for lane in sorted(by_lane))

    def _warn_of_marks(self, positions: Mapping[int, LanePosition]) -> None:
        """Warn once if a run that resumes would read the rows of more than a pass again."""
        data = self._data
        assert data.stream is not None
        assert data.stream.rows is not None
        assert data.stream.lanes is not None
        most = max(positions, key=lambda n: positions[n].rows, default=None)
        if most is None or self._has_warned_of_marks:
            return
        rows = positions[most].rows
        if rows > data.stream.rows // data.stream.lanes:
            self._has_warned_of_marks = True
            text = f"{data.source}: lane {most} has given no mark for {rows:,} rows: a run that resumes"
            hint = "reads them again; yield a placer.Mark after each block"
            self._execution.report(NodeWarning(f"{text} {hint}"))

    def compare(self, epoch: int) -> None:
        """Compare the rows of lanes that several processes read, at the end of a pass. All nodes
        call this. Raises RunError on the control node if they differ."""
        if not self._is_compared:
            return
        own: list[Any] = []
        if self.rows is not None:
            with self._located():
                digests = self.rows.digests(epoch)
            own = [[lane, each] for lane, each in digests.items()]
        kind = list[tuple[int, dict[str, int]]]
        reports = self._gather(Key(LANE_DIGESTS, epoch), own, kind)
        if self._execution.is_control:
            by_node = {node: dict(report) for node, report in reports.items()}
            check_same_lanes(self._data, epoch, by_node)

    def _own_report(self) -> list[tuple[int, int, bool]]:
        """Return the rows that have arrived on this node, as `combine` takes them."""
        arrived = self.rows.arrived() if self.rows is not None else {}
        return [(lane, *each) for lane, each in arrived.items()]

    def _gather(self, key: Key, own: Any, kind: Any) -> Mapping[str, Any]:
        """Send a value to the control node; return the values of all readers there."""
        execution, reports = self._execution, dict[str, Any]()
        channel, control = execution.channel, execution.plan.control
        if not execution.is_control:
            if self.rows is not None:
                send_json(channel, control, key, own)
            return reports
        for node in self._readers:
            if node == control:
                reports[node] = msgspec.convert(own, kind)
            else:
                received = receive_json(channel, node, key, list)
                reports[node] = msgspec.convert(received, kind)
        return reports

    def _open(self) -> LaneSource:
        # Its imports start threads, and forks of nodes must not have any.
        from placer.readers.streams.lane_source import open_lanes

        reading = reading_of(self._execution, self._data, TRAINING)
        options = replace(reading.options, with_digests=self._is_compared)
        return open_lanes(*replace(reading, options=options).arguments)


def _ranges(shard: RowShard, batch: int, parts: int) -> list[RowRange]:
    """Return the rows of a shard of each microbatch."""
    found = (own_ranges(shard, batch, part, parts) for part in range(parts))
    return [each for ranges in found for each in ranges]


def _is_shared(plan: Plan, data: RowSource) -> bool:
    """Whether the function is called several times for a lane, by nodes or parts of batches."""
    parts, lanes = plan.settings.train.microbatches, list[frozenset[int]]()
    for node in plan.nodes:
        shards = {each.shard for each in node.step.reads if each.input != POSITION}
        ranges = (_ranges(shard, data.batch, parts) for shard in shards)
        lanes += [_lanes_in(each, data) for each in ranges]
    return sum(map(len, lanes)) > len(frozenset[int]().union(*lanes))


def _lanes_in(ranges: Iterable[RowRange], data: RowSource) -> frozenset[int]:
    assert data.stream is not None
    assert data.stream.lanes is not None
    part = data.batch // data.stream.lanes
    return frozenset(
        n for low, high in ranges for n in range(low // part, high // part)
    )
