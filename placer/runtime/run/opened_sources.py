"""Open the sources of a run: each node reads the columns that its program uses."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from placer.build.plan import NodePhase, NodePlan, data_root
from placer.config.data import RowSource
from placer.config.sources import POSITION
from placer.memory.limit import available_nbytes
from placer.readers import Order, ReadOptions, Rows, open_source
from placer.runtime.run.batches import Batches
from placer.runtime.run.state import Execution


def inputs_of(phase: NodePhase | None) -> frozenset[str]:
    """Return the inputs that a node reads from a source in a phase."""
    reads = phase.reads if phase is not None else ()
    return frozenset(read.input for read in reads) - {POSITION}


def open_batches(
    execution: Execution,
    data: RowSource,
    phase_of: Callable[[NodePlan], NodePhase | None],
) -> Batches:
    """Open a source as the node reads it in a phase.

    The number of rows is that of this node; the handshake makes it the same on all.

    Args:
        execution: the node's run.
        data: the source and its batches.
        phase_of: returns the phase of a node.
    """
    rows = open_rows(execution, data, phase_of)
    count = rows.rows if rows is not None else data.batch
    order = Order(count, data.batch, data.shuffle, data.seed, data.remainder)
    return Batches(order, rows)


def open_rows(
    execution: Execution,
    data: RowSource,
    phase_of: Callable[[NodePlan], NodePhase | None],
    *,
    to_predict: bool = False,
) -> Rows | None:
    """Open a source as `open_batches` does; return None on a node that reads nothing.

    `to_predict` is whether the rows are to be predicted.
    """
    plan, build = execution.plan, execution.folder
    execution.rows_read = 0
    inputs = inputs_of(phase_of(execution.me))
    rows: Rows | None = None
    if inputs:
        readers = [read for node in plan.nodes if (read := inputs_of(phase_of(node)))]
        used = frozenset[str]().union(*readers)
        feeds = {k: v for k, v in (data.columns or {}).items() if k in used}
        used_columns = [
            structs.replace(column, limits=data.ranges.get(column.name))
            for column in plan.columns
            if column.name in used
        ]
        columns = [column for column in used_columns if column.name in inputs]
        others = tuple(column for column in used_columns if column.name not in inputs)
        # The build has the spec's modules, the folder of the spec has its files.
        spec_folder = data_root(build)
        rows = open_source(
            structs.replace(data, columns=feeds or None),
            columns,
            build if data.parsed.kind == "python" else spec_folder,
            ReadOptions(
                other_columns=others,
                with_digests=len(readers) > 1 or execution.keeps_digests,
                seed=plan.seed,
                report=execution.report_rows,
                # Half of the memory is for the copy that joins chunks of a column. All
                # nodes may be on this machine, so each gets an equal part.
                nbytes=available_nbytes() // 2 // len(readers),
                to_predict=to_predict,
            ),
        )
    return rows
