"""The global batches that a node reads its rows of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from placer.build.plan import Data, Phase, Plan, Range
from placer.config.sources import POSITION
from placer.readers import Column, Limits, Order, Reading, Rows, open_source
from placer.readers.arguments import nobody
from placer.readers.memory_limit import available


@dataclass(frozen=True, slots=True)
class Batches:
    """The global batches of a source. `rows` is None on a node that reads nothing."""

    order: Order
    rows: Rows | None

    def count(self, index: int) -> int:
        """How many rows the `index`-th batch of an epoch has, from 0."""
        return min(self.order.batch, self.order.rows - index * self.order.batch)

    @property
    def all_rows(self) -> int:
        """How many rows an epoch goes through, on all nodes together."""
        return min(self.order.rows, self.order.steps_per_epoch * self.order.batch)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many rows a batch of an epoch may have: all but the last are full."""
        last = self.order.steps_per_epoch - 1
        return tuple(dict.fromkeys((self.count(0), self.count(last))))

    @property
    def own_rows(self) -> int | None:
        """How many rows the source has here; None where nothing is read."""
        return self.rows.rows if self.rows is not None else None

    def of(self, rows: int) -> Batches:
        """The same of a source with this number of rows."""
        return replace(self, order=replace(self.order, rows=rows))


def inputs_of(phase: Phase | None) -> frozenset[str]:
    """The inputs that a node reads in a phase."""
    reads = phase.reads if phase is not None else ()
    return frozenset(read.input for read in reads) - {POSITION}


def open_batches(
    plan: Plan,
    data: Data,
    phases: Mapping[str, Phase | None],
    node: str,
    build: Path,
    spec: Path,
    report: Callable[[int], None] = nobody,
) -> Batches:
    """The source as `node` reads it in a phase; all agree on its rows later.

    `phases` are those of all nodes, `build` is the folder of the build, where a spec's
    modules are, and `spec` that of the spec, where its files are. `report` is called
    with the number of rows read so far.
    """
    inputs = inputs_of(phases[node])
    rows: Rows | None = None
    if inputs:
        readers = [name for name, phase in phases.items() if inputs_of(phase)]
        used = frozenset[str]().union(*map(inputs_of, phases.values()))
        mapping = {k: v for k, v in (data.columns or {}).items() if k in used}
        every = [
            Column(c.name, c.dtype, c.shape, _limits(data.ranges.get(c.name)))
            for c in plan.columns
            if c.name in used
        ]
        columns = [column for column in every if column.name in inputs]
        others = tuple(column for column in every if column.name not in inputs)
        rows = open_source(
            data.source,
            columns,
            mapping=mapping or None,
            split=data.split,
            folder=build if data.source.startswith("python:") else spec,
            csv=data.csv,
            reading=Reading(
                others=others,
                compared=len(readers) > 1,
                seed=plan.seed,
                report=report,
                # All nodes are on this machine, and a column is copied once.
                nbytes=available() // 2 // len(readers),
            ),
        )
    count = rows.rows if rows is not None else data.batch
    order = Order(count, data.batch, data.shuffle, data.seed, data.remainder)
    return Batches(order, rows)


def _limits(range: Range | None) -> Limits | None:
    if range is None:
        return None
    return Limits(range.low, range.high, f"op '{range.op}' ({range.kind})")
