"""The global batches that a node reads its rows of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from placer.graph.structure import POSITION
from placer.plan import Data, Phase, Plan, Range
from placer.readers import Column, Limits, Order, Rows, open_source


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


def open_batches(
    plan: Plan, data: Data, phase: Phase | None, build: Path, spec: Path
) -> Batches:
    """The source as a node reads it in a phase; all agree on its rows later.

    `build` is the folder of the build, where a spec's modules are, and `spec` that of
    the spec, where its files are.
    """
    reads = phase.reads if phase is not None else ()
    inputs = {read.input for read in reads} - {POSITION}
    rows: Rows | None = None
    if inputs:
        columns = [
            Column(c.name, c.dtype, c.shape, _limits(data.ranges.get(c.name)))
            for c in plan.columns
            if c.name in inputs
        ]
        mapping = {k: v for k, v in (data.columns or {}).items() if k in inputs}
        rows = open_source(
            data.source,
            columns,
            mapping=mapping or None,
            split=data.split,
            folder=build if data.source.startswith("python:") else spec,
            csv=data.csv,
        )
    count = rows.rows if rows is not None else data.batch
    order = Order(count, data.batch, data.shuffle, data.seed, data.remainder)
    return Batches(order, rows)


def _limits(range: Range | None) -> Limits | None:
    if range is None:
        return None
    return Limits(range.low, range.high, f"op '{range.op}' ({range.kind})")
