"""Opens the sources of a run. Each process reads the columns that its programs use."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from msgspec import structs

from placer.place.node_kinds import NodeId
from placer.plan.data_positions import located, read_spans
from placer.plan.plan import NodePlan, Plan, data_root
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.sources import POSITION
from placer.plan.settings.data.window import Window
from placer.readers import Order, PieceRows, ReadOptions, Rows, open_pieces, open_source
from placer.readers.rows import LoadedRows
from placer.readers.window_advice import Reading, advise, advise_window
from placer.runtime.batches.batches import Batches
from placer.runtime.batches.passes import count_steps
from placer.runtime.control.events import NodeWarning, Notice
from placer.runtime.control.execution import Execution
from placer.system.memory.limit import available_nbytes

TRAINING: Final = "training"
EVALUATION: Final = "evaluation"
PREDICTION: Final = "prediction"
KEYS: Final = {TRAINING: "train", EVALUATION: "eval"}
"""The key of `data` for each phase."""


def inputs_of(node: NodePlan, phase: str) -> frozenset[str]:
    """Return the inputs that a node reads from a source in a phase."""
    of_phase = {
        TRAINING: node.step,
        EVALUATION: node.evaluation,
        PREDICTION: node.prediction,
    }[phase]
    reads = of_phase.reads if of_phase is not None else ()
    return frozenset(read.input for read in reads) - {POSITION}


def readers_of(plan: Plan, phase: str) -> dict[str, list[NodePlan]]:
    """Return the nodes that read a source in a phase, by process."""
    readers: dict[str, list[NodePlan]] = {}
    for node in plan.nodes:
        if inputs_of(node, phase):
            readers.setdefault(NodeId(node.name).process, []).append(node)
    return readers


def open_batches(execution: Execution, data: RowSource, phase: str) -> Batches:
    """Open a source for a node and a phase.

    The number of rows is local to this node; the handshake makes all nodes agree on it.

    Args:
        execution: the node's run.
        data: the source and its batches.
        phase: TRAINING or EVALUATION.

    Raises:
        DataError: if the source does not fit the spec, with the position in the spec.
        RunError: if the code of a `python:` source raises, with the source's position.
    """
    with located(KEYS[phase], read_spans(execution.folder)):
        rows = open_rows(execution, data, phase)
        count = rows.rows if rows is not None else data.batch
        order = Order(count, data.batch, data.shuffle, data.seed, data.remainder)
    batches = Batches(order, rows, order.steps_per_epoch)
    if phase == TRAINING:
        batches = batches.until(count_steps(execution, batches.passes))
    return batches


def open_rows(
    execution: Execution, data: RowSource, phase: str
) -> Rows | PieceRows | None:
    """Open a source for a phase; return None on a node that reads nothing. All nodes of
    a process share the rows."""
    if not inputs_of(execution.me, phase):
        return None

    def read() -> Rows | PieceRows:
        return _read(execution, data, phase)

    return execution.shared_rows.of_phase(phase, execution.me.name, read)


def _read(execution: Execution, data: RowSource, phase: str) -> Rows | PieceRows:
    """Open a source with all inputs that the nodes of this process read in a phase."""
    plan, build = execution.plan, execution.folder
    execution.report_rows(0)
    inputs = {
        process: frozenset[str]().union(*(inputs_of(node, phase) for node in nodes))
        for process, nodes in readers_of(plan, phase).items()
    }
    own = inputs[NodeId(execution.me.name).process]
    used = frozenset[str]().union(*inputs.values())
    feeds = {k: v for k, v in (data.columns or {}).items() if k in used}
    used_columns = [
        structs.replace(column, limits=data.ranges.get(column.name))
        for column in plan.columns
        if column.name in used
    ]
    columns = [column for column in used_columns if column.name in own]
    others = tuple(column for column in used_columns if column.name not in own)
    # The build folder has copies of the spec's modules; data files are relative to the spec.
    spec_folder = data_root(build)
    available = available_nbytes()
    arguments = (
        structs.replace(data, columns=feeds or None),
        columns,
        build if data.parsed.kind == "python" else spec_folder,
        ReadOptions(
            other_columns=others,
            with_digests=len(inputs) > 1 or execution.keeps_digests,
            seed=plan.settings.seed,
            files=execution.shared_rows.files.get(phase),
            report=execution.report_rows,
            # Joining the chunks of a column copies it, so half of the memory is kept for the copy.
            # All processes may run on this machine, so each process gets an equal part.
            nbytes=available // 2 // len(inputs),
            to_predict=phase == PREDICTION,
        ),
    )
    is_first = NodeId(execution.me.name).process == next(iter(inputs))
    if isinstance(data.shuffle, Window):
        pieces = open_pieces(*arguments)
        advice = advise(pieces, data.shuffle, available_nbytes())
        if is_first and advice:
            execution.report(NodeWarning(advice))
        return pieces
    begin = time.perf_counter()
    rows = open_source(*arguments)
    seconds = time.perf_counter() - begin
    if is_first and phase in KEYS and isinstance(rows, LoadedRows):
        cost = Reading(rows.rows, seconds, rows.nbytes)
        key, processes = KEYS[phase], len(inputs)
        opened = partial(open_pieces, *arguments)
        advice = advise_window(data, key, cost, processes, available, opened)
        if advice:
            execution.report(Notice(advice))
    return rows
