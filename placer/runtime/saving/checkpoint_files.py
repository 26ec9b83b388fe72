"""Writes one node's files of a checkpoint, or sends them to the control node.

A node sends its files if it has no access to the control node's folder of checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from placer.channel.interface import Key
from placer.checkpoint.finite import find_nan, find_not_finite
from placer.checkpoint.manifest import Progress, Stored
from placer.checkpoint.writing import (
    describe_file,
    pieces_of_file,
    spool,
    write_file,
    write_stream,
    write_tensors,
)
from placer.plan.settings.training.optimizers import VALUES
from placer.runtime.control.barrier import FILE_PART, STORED, receive_json, send_json
from placer.runtime.control.byte_messages import receive_parts, send_parts
from placer.runtime.control.execution import Execution
from placer.runtime.control.option_checks import has_order
from placer.runtime.saving.optimizer_state import array_of, states_of_blocks
from placer.runtime.saving.problems import describe, is_full
from placer.runtime.saving.published_files import NodeRows
from placer.runtime.saving.publishing import Publishing
from placer.runtime.saving.row_files import (
    Saves,
    file_of_rows,
    groups_of_file,
    holds_rows,
)
from placer.runtime.saving.stored_blocks import file_of, holders
from placer.tables.block_table import Snapshot

Pieces = Sequence[memoryview]
"""The contents of a file to send."""


class Report(msgspec.Struct, frozen=True):
    """A node's report to the control node about its files of a checkpoint.

    `stored` and `rows` describe the files of dense blocks and of sparse rows. If `sent`, the
    files follow as messages. `problem` is empty if the files could be written.
    """

    stored: Stored | None = None
    rows: Stored | None = None
    updates: dict[str, tuple[int, ...]] = {}
    sent: bool = False
    problem: str = ""
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A checkpoint to write.

    Attributes:
        saves: the running saves of sparse tables; closing `contexts` ends them.
        problem: why these saves could not begin; empty if they could.
        snapshots: copies of the dense tables, by name.
        updates: the number of updates of each block, by table.
        progress: the position of the run; None except on the control node.
        publishing: a publication of the same step. Its rows are read with those of the checkpoint.
    """

    step: int
    saves: Saves
    contexts: ExitStack
    problem: str
    snapshots: Mapping[str, Snapshot]
    updates: Mapping[str, tuple[int, ...]]
    progress: Progress | None
    publishing: Publishing | None = None


def reporting_nodes(execution: Execution) -> list[str]:
    """Return the nodes that report a part of a checkpoint, in the order of the plan: data, or
    the mark of the checkpoint in a recorded order."""
    plan = execution.plan
    dense, records = {*holders(plan)}, execution.options.record_order is not None
    names = (node.name for node in plan.nodes)
    return [
        name
        for name in names
        if name in dense
        or holds_rows(plan, name)
        or (records and has_order(plan, name))
    ]


def write_files(
    execution: Execution,
    temporary: Path,
    job: Job,
    held: Mapping[str, Sequence[int]],
    before: Callable[[], None],
    *,
    sees_folder: bool,
    published: NodeRows | None,
) -> tuple[Report, tuple[Pieces, Pieces]]:
    """Write the files of this node: one with dense blocks and one with sparse rows.

    Args:
        temporary: the temporary folder of the checkpoint.
        job: the checkpoint.
        held: the indices of the blocks that the node saves, by table.
        before: called first; an error is a problem of the report.
        sees_folder: whether the node has access to the folder. If not, nothing is written.
        published: receives the rows that are read, for a publication.

    Returns:
        The node's report, and the contents of both files if they must be sent.
    """
    pieces: Pieces = ()
    row_pieces: Pieces = ()
    try:
        before()
        report, pieces = _write_blocks(execution, temporary, job, held, sees_folder)
        if not report.problem and (job.problem or job.saves):
            report, row_pieces = _write_rows(
                execution, temporary, job, report, sees_folder, published
            )
    except Exception as error:  # report it, because the control node waits for a report
        return _failed(error), ((), ())
    return report, (pieces, row_pieces)


def send_files(
    execution: Execution, step: int, report: Report, pieces: tuple[Pieces, Pieces]
) -> None:
    """Send a node's report to the control node, and the files that it could not write.

    Only `reporting_nodes` send something.
    """
    channel, control = execution.channel, execution.plan.control
    if execution.me.name not in reporting_nodes(execution):
        return
    send_json(channel, control, Key(STORED, step), msgspec.to_builtins(report))
    if report.sent:
        for number, each in enumerate(pieces):
            send_parts(channel, control, Key(FILE_PART, step, number), each)


def receive_files(
    execution: Execution, temporary: Path, node: str, step: int
) -> Report:
    """Receive a node's report and write the files that it sends. The report contains the problem
    if a file could not be written.
    """
    report = receive_json(execution.channel, node, Key(STORED, step), Report)
    if not report.sent:
        return report
    files = (file_of(node), report.stored), (file_of_rows(node), report.rows)
    for number, (name, stored) in enumerate(files):
        if stored is None:
            continue
        key = Key(FILE_PART, step, number)
        parts = receive_parts(execution.channel, node, key, stored.nbytes)
        try:
            write_file(temporary, name, parts)
        except OSError as error:
            for _ in parts:
                pass  # the sender waits until everything is received
            report = _failed(error)
    return report


def _write_blocks(
    execution: Execution,
    temporary: Path,
    job: Job,
    held: Mapping[str, Sequence[int]],
    sees_folder: bool,
) -> tuple[Report, Pieces]:
    tensors: dict[str, Any] = {}
    state: dict[str, Any] = {}
    for table in execution.me.tables:
        states = states_of_blocks(execution.plan, table)
        for array, values in job.snapshots.get(table.name, {}).items():
            for index, value in zip(held[table.name], values, strict=True):
                block = table.blocks[index]
                if value is None or (array in states[index].leaves and block.start):
                    continue  # a leaf is stored once, with the first block
                name = block.name
                if array != VALUES:
                    name += f"/{array_of(table, array)}"
                is_state = table.transformation and array in states[index].names
                (state if is_state else tensors)[name] = np.asarray(value)
    if not tensors:
        return Report(), ()
    if execution.plan.settings.train.nan == "stop" and (
        problem := find_not_finite(tensors) or find_nan(state)
    ):
        return Report(problem=problem), ()
    tensors |= state
    updates = dict(job.updates)
    if sees_folder:
        stored = write_tensors(temporary, file_of(execution.me.name), tensors)
        return Report(stored, updates=updates), ()
    pieces = pieces_of_file(tensors)
    return Report(describe_file(pieces), updates=updates, sent=True), pieces


def _write_rows(
    execution: Execution,
    temporary: Path,
    job: Job,
    report: Report,
    sees_folder: bool,
    published: NodeRows | None,
) -> tuple[Report, Pieces]:
    plan, me = execution.plan, execution.me.name
    if job.problem:
        return Report(problem=job.problem), ()
    groups = groups_of_file(
        plan,
        me,
        job.saves,
        finite=plan.settings.train.nan == "stop",
        on_partition=published.add if published is not None else None,
    )
    if sees_folder:
        stored = write_stream(temporary, file_of_rows(me), groups)
        return replace(report, rows=stored), ()
    stored, content = spool(groups)
    return replace(report, rows=stored, sent=True), [content]


def _failed(error: Exception) -> Report:
    return Report(problem=describe(error), is_full=is_full(error))
