"""Derives the entries of a cost file from the times of two builds and of messages.

The fine build has a function for each movable group: its time without the call is the time
of a piece. Alone, a piece takes longer than in a function with others. So the times of all
pieces are scaled by those of the coarse build, whose functions are as large as those of a
stage. Its steps also run without waiting for each call, as in a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median, median_low
from typing import Final

from placer.compiler.graph.flops import FlopsCache
from placer.compiler.graph.graph import Op
from placer.compiler.placing.costs import (
    Costs,
    Machine,
    Sample,
    measured_costs,
    quantile_sample,
)
from placer.compiler.placing.functions import call_times
from placer.compiler.placing.pieces import elementwise_elements, pieces_of
from placer.compiler.placing.step_items import Item, step_items
from placer.compiler.schedule.schedule import make_schedule
from placer.measuring.builds import SplitBuild
from placer.measuring.child import EMULATED, Measured
from placer.measuring.overheads import FEW, MANY
from placer.measuring.timer import REST

ALWAYS: Final = 1 << 40
"""The size of a second sample of an entry that does not depend on its size."""
LIMITS: Final = (0.25, 4.0)
"""The smallest and the largest factor by which pieces are scaled."""
Messages = Mapping[str, Mapping[str, Sequence[int]]]
"""The times of both ends of messages by bytes: of `send` and of `receive`."""


_Entries = dict[str, list[Sample]]


@dataclass
class _Timed:
    """The times of a piece in nanoseconds; equal layers share one."""

    rows: int
    flops: int
    times: list[float] = field(default_factory=list)


@dataclass
class _Segment:
    """The functions of a segment: usually one.

    Attributes:
        ops: their ops.
        overhead: the nanoseconds of their calls.
        times: the times of each function.
    """

    ops: list[Op] = field(default_factory=list)
    overhead: int = 0
    times: list[Sequence[int]] = field(default_factory=list)

    def alone(self) -> list[float]:
        """Return the nanoseconds of all functions in each step, without their calls."""
        steps = zip(*self.times, strict=False)
        return [max(0.0, sum(each) - self.overhead) for each in steps]


@dataclass
class Derivation:
    """The entries so far.

    Attributes:
        groups: the movable group of each forward op by name.
        fine: the build with a function for each group.
        fine_times: its times, with the overheads.
        coarse: the build with two groups.
        coarse_times: its times.
        messages: the times of messages, from each end.
        machine: the machine.
        elsewhere: the fine build on another device that is not emulated, and its times.
    """

    groups: Mapping[str, str]
    fine: SplitBuild
    fine_times: Measured
    coarse: SplitBuild
    coarse_times: Measured
    messages: Sequence[Messages]
    machine: Machine
    elsewhere: tuple[SplitBuild, Measured] | None = None
    entries: _Entries = field(default_factory=dict)

    def costs(self) -> Costs:
        """Return the costs."""
        self._add_overheads()
        self._add_messages()
        self._add_calls()
        pieces = self._pieces(self.fine, self.fine_times)
        self.entries.update(self._scaled(pieces, 1.0))
        factor = self._factor()
        self.entries.update(self._scaled(pieces, factor))
        if self.elsewhere is not None:
            self.entries.update(self._scaled(self._pieces(*self.elsewhere), 1.0))
        return self._so_far()

    def _so_far(self) -> Costs:
        return measured_costs(self.entries, self.machine)

    # Overheads.

    def _add_overheads(self) -> None:
        times = {(name, size): t for name, size, t in self.fine_times.overheads}
        (call,) = (median(t) for (n, _), t in times.items() if n == "call")
        for (name, size), measured in times.items():
            if name == "call":
                self._add(name, [quantile_sample(FEW, measured)])
            elif name.startswith("call: "):
                more = [max(0.0, median(measured) - call)] * len(measured)
                self._add(name, [quantile_sample(MANY - FEW, more)])
            elif name == "elementwise":
                more = [max(0.0, each - call) for each in measured]
                self._add(name, [quantile_sample(size, more)])
            elif name == "sum of microbatches: bytes":
                few = median(times["sum of microbatches: arrays", FEW])
                more = [max(0.0, each - few) for each in measured]
                self._add(name, [quantile_sample(size, more)])
            else:
                self._add(name, [quantile_sample(size, measured)])

    def _add_messages(self) -> None:
        for kind in ("send", "receive"):
            both: dict[int, list[int]] = {}
            for end in self.messages:
                for nbytes, times in end[kind].items():
                    both.setdefault(int(nbytes), []).extend(times)
            self._add(
                kind, [quantile_sample(size, each) for size, each in both.items()]
            )

    def _add_calls(self) -> None:
        """Add the calls of the node, timed in the steps of the coarse build."""
        times, ratio = self.coarse_times.times, self._unwaited
        self._add_constant("read", times.get("read", ()), ratio)
        self._add_constant("record", times.get("record", ()), ratio)
        self._add_constant("other call", times.get("parameters", ()), ratio)
        fine = self._per_step(self.fine_times)
        coarse = self._per_step(self.coarse_times)
        turns = [t for t in self._coarse_items if t.name == "task"]
        if turns:
            self._add_constant("step", [fine[REST]], 1.0)
            more = coarse[REST] - fine[REST]
            self._add_constant("task", [max(0.0, more) / len(turns)], ratio)
        else:
            # Of two noisy times, the smaller one: other threads also read ahead.
            self._add_constant("step", [min(fine[REST], coarse[REST])], ratio)
        self._add_updates()
        self._add_rows_by_key()

    def _add_updates(self) -> None:
        """Add the update of all parameters, next to that of a small block."""
        elements: dict[str, int] = {}
        graph = self.coarse.step.graph
        for op in graph.ops:
            if op.structure.update == "value":
                kind = graph.tensor_type(op.operands[0])
                if not kind.is_keyed:
                    entry = f"update {op.kind}"
                    elements[entry] = elements.get(entry, 0) + kind.numel()
        measured = self.coarse_times.times.get("update", ())
        if len(elements) == 1 and measured:  # otherwise the calls cannot be told apart
            ((entry, size),) = elements.items()
            times = [self._unwaited * each for each in measured]
            known = self.entries.get(entry, [])
            self.entries[entry] = [s for s in known if s.size < size]
            self.entries[entry].append(quantile_sample(size, times))

    def _add_rows_by_key(self) -> None:
        names = "distinct_keys", "distributed_lookup_table", "sum_by_key"
        of_calls = [self.coarse_times.times.get(name, ()) for name in names]
        medians = [median(times) for times in of_calls if times]
        if medians:
            self._add_constant("rows by key", [mean(medians)], self._unwaited)

    # Pieces.

    def _pieces(self, build: SplitBuild, measured: Measured) -> dict[str, _Timed]:
        """Return the times of each piece alone, without its call, by name."""
        graph, costs, known = build.step.graph, self._so_far(), FlopsCache()
        (node,) = graph.cluster.all_nodes()
        of_segment: dict[int, _Segment] = {}
        for unit in build.step.units_on(node):
            if unit.computed and unit.outputs:
                segment = unit.ops[0].attrs["segment"]
                found = of_segment.setdefault(segment, _Segment())
                found.ops += unit.ops
                found.overhead += median_low(call_times(graph, unit, costs))
                elements = elementwise_elements(graph, unit.ops, node)
                found.overhead += median_low(costs.times("elementwise", elements))
        for name, segment in build.segments.items():
            if (times := measured.times.get(f"{name}()")) is not None:
                of_segment[segment].times.append(times)
        pieces: dict[str, _Timed] = {}
        for each in of_segment.values():
            in_segment = pieces_of(graph, each.ops, node, self.groups, known)
            if len(in_segment) == 1 and each.times:
                (piece,) = in_segment
                timed = pieces.setdefault(piece.name, _Timed(piece.rows, piece.flops))
                timed.times += each.alone()
        return pieces

    def _scaled(self, pieces: Mapping[str, _Timed], factor: float) -> _Entries:
        """Return the entries of pieces.

        The pieces of the processor are also those of a device that it emulates.
        """
        emulated = [k for k, n in self.machine.devices.items() if n == EMULATED]
        entries: _Entries = {}
        for name, piece in pieces.items():
            times = [factor * each for each in piece.times]
            entries[name] = [quantile_sample(piece.rows, times, piece.flops)]
            _, _, ops = name.partition(" ")
            for other in emulated:
                entries[f"{other} {ops}"] = entries[name]
        return entries

    # The scale.

    @property
    def _coarse_items(self) -> Sequence[Item]:
        step = self.coarse.step
        schedule = make_schedule(step.graph, "1f1b")
        found = step_items(step, schedule, self._so_far(), self.groups)
        (items,) = found.items.values()
        return items

    def _factor(self) -> float:
        """Return how long pieces take in large functions, relative to alone."""
        functions = [item for item in self._coarse_items if len(item.busy) > 1]
        alone = sum(median_low(item.busy["compute"]) for item in functions)
        calls = sum(median_low(item.busy["calls"]) for item in functions)
        step = self._per_step(self.coarse_times)
        together = sum(time for name, time in step.items() if name.endswith("()"))
        low, high = LIMITS
        if not alone:
            return 1.0
        return min(high, max(low, (self._unwaited * together - calls) / alone))

    @property
    def _unwaited(self) -> float:
        """How long a step takes, relative to a step whose calls wait for their results."""
        waited = sum(self._per_step(self.coarse_times).values())
        if not self.coarse_times.plain:
            return 1.0
        return min(1.0, median(self.coarse_times.plain) / waited)

    def _per_step(self, measured: Measured) -> dict[str, float]:
        """Return the nanoseconds of all calls of a name in one step."""
        steps = measured.steps
        return {
            name: median(times) * len(times) / steps
            for name, times in measured.times.items()
        }

    def _add(self, name: str, samples: Sequence[Sample]) -> None:
        self.entries.setdefault(name, []).extend(samples)

    def _add_constant(self, name: str, times: Sequence[float], ratio: float) -> None:
        """Add an entry that does not depend on its size."""
        if times:
            scaled = [ratio * each for each in times]
            self._add(name, [quantile_sample(size, scaled) for size in (0, ALWAYS)])
