"""Opens the sources of a run. Each process reads the columns that its programs use."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import structs

from placer.errors import DataError
from placer.place.node_kinds import NodeId
from placer.plan.data_positions import located, read_spans
from placer.plan.plan import NodePlan, Plan, data_root
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.sources import POSITION
from placer.plan.settings.data.stream_pass import StreamPass
from placer.plan.settings.data.window import Window
from placer.readers import (
    Column,
    Order,
    PieceRows,
    ReadOptions,
    Rows,
    open_pieces,
    open_source,
)
from placer.readers.rows import LoadedRows
from placer.readers.streams import check_files
from placer.readers.streams.lane_rows import LaneRows
from placer.readers.window_advice import Cost, advise, advise_window
from placer.runtime.batches.batches import Batches
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
    if data.stream is not None:  # its passes are opened later
        return Batches(_order(data, data.batch), None)
    with located(KEYS[phase], read_spans(execution.folder)):
        rows = open_rows(execution, data, phase)
        order = _order(data, rows.rows if rows is not None else data.batch)
    return Batches(order, rows, order.steps_per_epoch)


def _order(data: RowSource, rows: int) -> Order:
    return Order(rows, data.batch, data.shuffle, data.seed, data.remainder)


def open_pass(
    execution: Execution, data: RowSource, stream_pass: StreamPass, before: int
) -> Batches:
    """Open a pass of a stream for a node, and compare its files with the announcement.

    Args:
        execution: the node's run.
        data: the source and its batches.
        stream_pass: the pass.
        before: the last step before the pass.

    Raises:
        DataError: if a file does not fit the spec, or differs from the announcement.
    """
    rows = None
    with located(KEYS[TRAINING], read_spans(execution.folder)):
        if inputs_of(execution.me, TRAINING):

            def read() -> Rows | PieceRows:
                return _read_pass(execution, data, stream_pass)

            shared = execution.shared_rows
            rows = shared.of_pass(stream_pass, execution.me.name, read)
    return batches_of_pass(execution, data, stream_pass, before, rows)


def batches_of_pass(
    execution: Execution,
    data: RowSource,
    stream_pass: StreamPass,
    before: int,
    rows: Rows | PieceRows | LaneRows | None,
) -> Batches:
    """Return the batches of a pass after step `before`, whose opened rows are given."""
    batches = Batches(_order(data, stream_pass.rows), rows)
    batches = batches.after(before, stream_pass.number - 1).until(None, epochs=1)
    steps = execution.options.steps
    return batches if steps is None else batches.until(min(steps, batches.last_step), 1)


def _read_pass(
    execution: Execution, data: RowSource, stream_pass: StreamPass
) -> Rows | PieceRows:
    reading = reading_of(execution, data, TRAINING)
    files = tuple(file.path for file in stream_pass.files)
    # The files are compared with the announcement instead of the rows of the nodes.
    options = replace(reading.options, files=files, with_digests=False)
    rows = replace(reading, options=options).open()
    check_files(reading.own_data, reading.columns, reading.folder, stream_pass)
    if rows.rows != stream_pass.rows:
        raise DataError(
            f"{data.source}: the files of pass {stream_pass.number} have {rows.rows:,} rows,"
            f" but {stream_pass.rows:,} were announced",
            hint="write new rows to a new file",
        )
    return rows


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
    execution.report_rows(0)
    reading, available = reading_of(execution, data, phase), available_nbytes()
    begin = time.perf_counter()
    rows = reading.open()
    seconds = time.perf_counter() - begin
    if not reading.is_first:
        return rows
    if isinstance(rows, PieceRows):
        assert isinstance(data.shuffle, Window)
        if advice := advise(rows, data.shuffle, available):
            execution.report(NodeWarning(advice))
    elif phase in KEYS and isinstance(rows, LoadedRows):
        cost = Cost(rows.rows, seconds, rows.nbytes)
        key, processes = KEYS[phase], len(readers_of(execution.plan, phase))
        pieces = partial(open_pieces, *reading.arguments)
        if advice := advise_window(data, key, cost, processes, available, pieces):
            execution.report(Notice(advice))
    return rows


@dataclass(frozen=True, slots=True)
class Reading:
    """How a process reads a source in a phase.

    Attributes:
        data: the settings of the source, with the columns that any process uses.
        columns: the inputs of this process.
        folder: the folder that paths are relative to.
        options: the options of the readers.
        is_first: whether this is the first process that reads the source.
    """

    data: RowSource
    columns: Sequence[Column]
    folder: Path
    options: ReadOptions
    is_first: bool

    @property
    def used(self) -> Sequence[Column]:
        """The inputs of all processes."""
        return *self.columns, *self.options.other_columns

    @property
    def own_data(self) -> RowSource:
        """The settings of the source, with the columns of this process."""
        own = {column.name for column in self.columns}
        feeds = {k: v for k, v in (self.data.columns or {}).items() if k in own}
        return structs.replace(self.data, columns=feeds or None)

    def open(self) -> Rows | PieceRows:
        """Open the source."""
        has_window = isinstance(self.data.shuffle, Window)
        opens = open_pieces if has_window else open_source
        return opens(*self.arguments)

    @property
    def arguments(self) -> tuple[RowSource, Sequence[Column], Path, ReadOptions]:
        """The arguments of the functions that open a source."""
        return self.data, self.columns, self.folder, self.options


def reading_of(execution: Execution, data: RowSource, phase: str) -> Reading:
    """Return how the process of a node reads a source in a phase."""
    plan, build = execution.plan, execution.folder
    inputs = {
        process: frozenset[str]().union(*(inputs_of(node, phase) for node in nodes))
        for process, nodes in readers_of(plan, phase).items()
    }
    own = inputs.get(NodeId(execution.me.name).process, frozenset())
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
    return Reading(
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
            nbytes=available_nbytes() // 2 // len(inputs),
            to_predict=phase == PREDICTION,
        ),
        is_first=NodeId(execution.me.name).process == next(iter(inputs)),
    )
