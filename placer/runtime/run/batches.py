"""The global batches of a source, of which a node reads its own rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from placer.build.plan import NodePhase, Plan
from placer.config.data import RowSource
from placer.config.sources import POSITION
from placer.readers import Order, ReadOptions, Rows, open_source
from placer.readers.arguments import ignore_progress
from placer.readers.memory_limit import available_nbytes


@dataclass(frozen=True, slots=True)
class Batches:
    """The global batches of a source.

    Attributes:
        order: the order of the rows.
        rows: the opened source; None on a node that reads nothing.
    """

    order: Order
    rows: Rows | None

    def batch_size(self, index: int) -> int:
        """Return the number of rows of batch `index` (from 0) of an epoch."""
        return min(self.order.batch, self.order.rows - index * self.order.batch)

    @property
    def epoch_rows(self) -> int:
        """The number of rows of an epoch, on all nodes together."""
        return min(self.order.rows, self.order.steps_per_epoch * self.order.batch)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of rows that a batch may have: all but the last of an epoch are
        full."""
        last = self.order.steps_per_epoch - 1
        return tuple(dict.fromkeys((self.batch_size(0), self.batch_size(last))))

    @property
    def source_rows(self) -> int | None:
        """The number of rows of the source on this node; None if it reads nothing."""
        return self.rows.rows if self.rows is not None else None

    def with_rows(self, rows: int) -> Batches:
        """Return the batches of a source with this number of rows."""
        return replace(self, order=replace(self.order, rows=rows))


def inputs_of(phase: NodePhase | None) -> frozenset[str]:
    """Return the inputs that a node reads from a source in a phase."""
    reads = phase.reads if phase is not None else ()
    return frozenset(read.input for read in reads) - {POSITION}


def open_batches(
    plan: Plan,
    data: RowSource,
    phases: Mapping[str, NodePhase | None],
    node: str,
    build: Path,
    spec: Path,
    report: Callable[[int], None] = ignore_progress,
) -> Batches:
    """Open a source as `node` reads it in a phase.

    The number of rows is that of this node; the handshake makes it the same on all.

    Args:
        plan: the plan.
        data: the source and its batches.
        phases: the phase of each node, by the node's name.
        node: the name of this node.
        build: the folder of the build, which has the spec's modules.
        spec: the folder of the spec, which has its files.
        report: called with the number of rows read so far.
    """
    inputs = inputs_of(phases[node])
    rows: Rows | None = None
    if inputs:
        readers = [name for name, phase in phases.items() if inputs_of(phase)]
        used = frozenset[str]().union(*map(inputs_of, phases.values()))
        feeds = {k: v for k, v in (data.columns or {}).items() if k in used}
        used_columns = [
            structs.replace(column, limits=data.ranges.get(column.name))
            for column in plan.columns
            if column.name in used
        ]
        columns = [column for column in used_columns if column.name in inputs]
        others = tuple(column for column in used_columns if column.name not in inputs)
        rows = open_source(
            structs.replace(data, columns=feeds or None),
            columns,
            build if data.parsed.kind == "python" else spec,
            ReadOptions(
                other_columns=others,
                with_digests=len(readers) > 1,
                seed=plan.seed,
                report=report,
                # Half of the memory is for the copy that joins chunks of a column. All
                # nodes may be on this machine, so each gets an equal part.
                nbytes=available_nbytes() // 2 // len(readers),
            ),
        )
    count = rows.rows if rows is not None else data.batch
    order = Order(count, data.batch, data.shuffle, data.seed, data.remainder)
    return Batches(order, rows)
