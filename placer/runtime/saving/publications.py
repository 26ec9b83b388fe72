"""Publishes parameters and changed rows during a run, for serving processes.

A publication has the state after a step at which all nodes have drained. Each node copies its
part, and its thread writes the files while training continues. Nodes send the dense parameters
to the control node, which joins them, waits for the files of all nodes, and writes the manifest.

If a publication cannot be written, the run warns and continues; the next one is a base.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from placer.channel.interface import Aborted, Array, Key
from placer.checkpoint.finite import find_not_finite
from placer.checkpoint.manifest import Progress
from placer.checkpoint.writing import discard, map_file, write_file, write_tensors
from placer.errors import CheckpointError
from placer.plan.serving import serving_files
from placer.publishing.code import prepare_code
from placer.publishing.folder import (
    commit,
    list_publications,
    publishing_locked,
    remove_old,
    temporary_folder,
)
from placer.publishing.manifest import PARAMETERS, Publication, merged
from placer.runtime.control.barrier import (
    PUBLISH,
    PUBLISHED,
    PUBLISHED_FILE,
    PUBLISHED_VALUES,
    barrier,
    receive_json,
    send_json,
)
from placer.runtime.control.byte_messages import receive_parts, send_parts
from placer.runtime.control.events import NodeWarning, PublicationWritten
from placer.runtime.control.execution import Execution
from placer.runtime.saving.gathered_parameters import chunks
from placer.runtime.saving.problems import describe, is_full
from placer.runtime.saving.published_files import NodeRows, Published
from placer.runtime.saving.publishing import Decided, Publishing
from placer.runtime.saving.shared_folder import share_folder
from placer.runtime.saving.writing_thread import WritingThread
from placer.tables.block_table import BlockTable

if TYPE_CHECKING:
    from placer.tables.sparse.table import SparseTable


class Publications:
    """One node's part in the publications of a run.

    Args:
        tables: the dense tables of the node, by name.
        sparse: its sparse tables, by name.
        thread: writes the publications, and the checkpoints.

    Attributes:
        settings: the settings.
        last: the position of the last publication that was begun: its step, and the steps of
            workers that train asynchronously.
        id: the id of that publication.
        newest: the newest publication of the folder; only on the control node.
        problem: why the last publication could not be written; empty if it could.
    """

    def __init__(
        self,
        execution: Execution,
        tables: Mapping[str, BlockTable],
        sparse: Mapping[str, SparseTable],
        thread: WritingThread,
    ) -> None:
        assert execution.publishing is not None
        assert execution.plan.serving is not None
        self.settings, self._serving = execution.publishing, execution.plan.serving
        self.last: tuple[int, Mapping[str, int]] = 0, {}
        self.id = ""
        self.newest: Publication | None = None
        self.problem = ""
        self._execution, self._tables, self._thread = execution, tables, thread
        self._sparse = {n: sparse[n] for n in self._serving.tables if n in sparse}
        self._blocks = [
            (parameter.name, part, holder, table, index)
            for parameter in execution.plan.parameters
            if parameter.name in self._serving.parameters
            for part, (holder, table, index) in enumerate(parameter.holders)
        ]
        self._run, self._sees_folder, self._code = "", True, ""
        self._next_is_base, self._count = True, 0
        self._is_deferred = self._has_waited = False
        self._asked_after = 0
        self._last_time = time.monotonic()

    def begin(self, progress: Progress | None, *, is_changed: bool) -> None:
        """Begin to use the folder. All nodes must call this at the same point.

        Args:
            progress: the position of the checkpoint that the run continues from.
            is_changed: whether the tables have changed since the checkpoint (`--shrink`).

        Raises:
            CheckpointError: on the control node, if the folder cannot be written to, another
                run writes to it, or it has publications of another model.
        """
        execution, folder = self._execution, self.settings.folder
        if execution.is_control:
            again = execution.attempt > 1 or execution.continues
            wait = execution.options.join_timeout if again else 0.0
            self._thread.locks.enter_context(publishing_locked(folder, wait=wait))
            listed = list_publications(folder)
            code = serving_files(execution.plan, execution.folder)
            self._code = prepare_code(folder, code, listed)
            self.newest = listed[-1] if listed else None
        self._run, self._sees_folder = share_folder(execution, folder, "publications")
        for table in self._sparse.values():
            table.record_removed()
        if progress is not None and progress.published and not is_changed:
            facts = {"newest": self.newest.id if self.newest is not None else ""}
            newest = barrier(execution.plan, execution.channel, facts, PUBLISH)[0]
            if newest["newest"] == progress.published:
                self.last = progress.step, progress.workers
                self.id, self._next_is_base = progress.published, False

    def is_due(self, step: int, *, ends_epoch: bool) -> bool:
        """Whether a publication is due after a step; an interval of time adds others."""
        return self.settings.is_due(step, ends_epoch=ends_epoch)

    def is_time(self) -> bool:
        """Whether the control node should request a publication: the interval is over, or one
        that was due had to wait."""
        if self._asked_after == self._execution.step:  # nothing was trained since
            return False
        every = self.settings.every
        passed = time.monotonic() - self._last_time
        is_over = every.unit == "seconds" and passed >= every.number
        if not (is_over or self._is_deferred) or self._thread.is_writing:
            return False
        self._is_deferred, self._last_time = False, time.monotonic()
        self._asked_after = self._execution.step
        return True

    def publish(
        self,
        step: int,
        workers: Mapping[str, int],
        epoch: int,
        *,
        waits: bool,
        is_discarded: bool,
        reads: bool,
    ) -> Publishing | None:
        """Begin a publication of a step. All nodes call this at the same point.

        Returns None if the step has been published, or if files are still being written: then a
        later step is published. The caller puts the publication in the thread.

        Args:
            step: the last step that all workers have finished.
            workers: the last steps of workers that train asynchronously.
            epoch: the epoch or pass of the step.
            waits: whether to wait for files that are still being written.
            is_discarded: whether it is not committed; used on the control node.
            reads: whether to read the tables; otherwise a checkpoint does.
        """
        if step == 0 or (step, workers) == self.last:
            return None
        if waits or self._has_waited:  # a checkpoint after each step must not stop them
            self._thread.wait()
        decided = self._decide()
        self._has_waited = self._is_deferred = decided is None
        if decided is None:
            return None
        self.last, self.id = (step, workers), decided.id
        self._count += 1
        removed = {n: table.take_removed().keys for n, table in self._sparse.items()}
        publishing = Publishing(
            self._count,
            step,
            epoch,
            decided,
            is_discarded,
            {} if decided.is_base else removed,
            self._copied_values(),
            max((table.latest for table in self._sparse.values()), default=0),
            self._make_rows,
            self._finish,
        )
        if reads:
            publishing.begin_saves(self._sparse)
        return publishing

    @property
    def newest_path(self) -> str | None:
        """The path of the newest publication of the folder, on the control node."""
        if self.newest is None:
            return None
        return str(self.settings.folder / self.newest.folder)

    def put(self, publishing: Publishing) -> None:
        """Write a publication whose tables no checkpoint reads."""
        self._thread.put(publishing.write)

    def _decide(self) -> Decided | None:
        """Return the control node's decision; None if a node is still writing files."""
        execution, newest = self._execution, self.newest
        facts: dict[str, Any] = {
            "busy": self._thread.is_writing,
            "base": any(t.has_too_many_removed for t in self._sparse.values()),
        }
        if execution.is_control:
            number = newest.number + 1 if newest is not None else 1
            if newest is None or number - newest.base >= self.settings.base:
                self._next_is_base = True
            facts |= {
                "base": facts["base"] or self._next_is_base,
                "number": number,
                "before": newest.base if newest is not None else number,
                "id": secrets.token_hex(8),
            }
        reports = barrier(execution.plan, execution.channel, facts, PUBLISH)
        if any(each["busy"] for each in reports):
            return None
        number, name = reports[0]["number"], reports[0]["id"]
        if any(each["base"] for each in reports):
            return Decided(number, name, number, 0)
        # Without lock-step, rows are seen in the step of the slowest worker.
        since = self.last[0] + execution.plan.is_synchronous
        return Decided(number, name, reports[0]["before"], since)

    def _copied_values(self) -> dict[tuple[str, int], Array]:
        """Return copies of the blocks that this node publishes."""
        values: dict[str, tuple[Any, ...]] = {}
        copies = {}
        for parameter, part, holder, table, index in self._blocks:
            if holder == self._execution.me.name:
                if table not in values:
                    values[table] = self._tables[table].evaluation_values()
                copies[parameter, part] = np.array(values[table][index]).reshape(-1)
        return copies

    # The following methods run in the thread.

    def _make_rows(self, publishing: Publishing) -> NodeRows:
        plan = self._execution.plan
        folder = self._temporary(publishing) if self._sees_folder else None
        return NodeRows(
            plan,
            self._execution.me.name,
            self._serving.tables,
            folder,
            publishing.decided.since,
            finite=plan.settings.train.nan == "stop",
        )

    def _temporary(self, publishing: Publishing) -> Path:
        return temporary_folder(
            self.settings.folder, publishing.decided.number, self._run
        )

    def _finish(self, publishing: Publishing, rows: NodeRows) -> None:
        try:
            report = rows.finish(publishing.removed, publishing.newest)
            if self._execution.is_control:
                self._complete(publishing, report)
            else:
                self._send(publishing, report, rows)
        except Aborted:
            pass  # the compute thread also raises this error and ends the run
        except Exception as error:
            self._fail(publishing, describe(error), full=is_full(error))

    def _reporting(self) -> Iterator[str]:
        """The other nodes that have a part of each publication."""
        plan = self._execution.plan
        dense = {holder for _, _, holder, _, _ in self._blocks}
        published = [t for t in plan.sparse_tables if t.name in self._serving.tables]
        held = {holder for table in published for holder in table.holders}
        for node in plan.nodes:
            if node.name in dense | held and node.name != plan.control:
                yield node.name

    def _send(self, publishing: Publishing, report: Published, rows: NodeRows) -> None:
        """Send the report to the control node, then the dense blocks, and the files that the
        control node does not see."""
        channel, control = self._execution.channel, self._execution.plan.control
        if channel.node not in self._reporting():
            return
        count = publishing.count
        send_json(channel, control, Key(PUBLISHED, count), msgspec.to_builtins(report))
        if report.problem:
            return
        for flat in publishing.values.values():
            for chunk in chunks(flat.size):
                channel.send(control, Key(PUBLISHED_VALUES, count), [flat[chunk]])
        if report.sent:
            for number, name in enumerate(report.files):
                key = Key(PUBLISHED_FILE, count, number)
                send_parts(channel, control, key, [map_file(rows.folder / name)])

    def _complete(self, publishing: Publishing, report: Published) -> None:
        """Receive the parts of all nodes, and commit the publication."""
        temporary = self._temporary(publishing)
        try:
            reports, values = {self._execution.me.name: report}, dict(publishing.values)
            for node in self._reporting():
                reports[node] = self._receive(publishing, temporary, node, values)
            problems = [f"{n}: {r.problem}" for n, r in reports.items() if r.problem]
            if problems:
                full = any(each.is_full for each in reports.values())
                self._fail(publishing, "; ".join(problems), full=full)
            elif not publishing.is_discarded:
                self._commit(publishing, temporary, reports, self._joined(values))
        finally:
            discard(temporary)

    def _receive(
        self,
        publishing: Publishing,
        temporary: Path,
        node: str,
        values: dict[tuple[str, int], Array],
    ) -> Published:
        """Receive the part of a node. The report has the problem if a file cannot be written."""
        channel, count = self._execution.channel, publishing.count
        report = receive_json(channel, node, Key(PUBLISHED, count), Published)
        if report.problem:
            return report
        for parameter, part, holder, table, index in self._blocks:
            if holder == node:
                block = self._block(node, table, index)
                arrays: list[Array] = []
                for _ in chunks(block.stop - block.start):
                    arrays += channel.receive(node, Key(PUBLISHED_VALUES, count))
                values[parameter, part] = np.concatenate(arrays)
        if not report.sent:
            return report
        for number, (name, stored) in enumerate(report.files.items()):
            key = Key(PUBLISHED_FILE, count, number)
            parts = receive_parts(channel, node, key, stored.nbytes)
            try:
                write_file(temporary, name, parts)
            except OSError as error:
                for _ in parts:
                    pass  # the sender waits until everything is received
                report = Published(problem=describe(error), is_full=is_full(error))
        return report

    def _block(self, node: str, table: str, index: int) -> Any:
        tables = self._execution.plan.node(node).tables
        return next(each for each in tables if each.name == table).blocks[index]

    def _joined(self, values: Mapping[tuple[str, int], Array]) -> dict[str, Array]:
        """Return the whole parameters."""
        parts: dict[str, list[Array]] = {}
        for parameter, part, *_ in self._blocks:
            parts.setdefault(parameter, []).append(values[parameter, part])
        shapes = {each.name: each.shape for each in self._execution.plan.parameters}
        return {n: np.concatenate(p).reshape(shapes[n]) for n, p in parts.items()}

    def _commit(
        self,
        publishing: Publishing,
        temporary: Path,
        reports: Mapping[str, Published],
        parameters: Mapping[str, Array],
    ) -> None:
        plan, folder = self._execution.plan, self.settings.folder
        decided = publishing.decided
        if plan.settings.train.nan == "stop" and (why := find_not_finite(parameters)):
            raise CheckpointError(why)
        files = {n: f for report in reports.values() for n, f in report.files.items()}
        files[PARAMETERS] = write_tensors(temporary, PARAMETERS, parameters)
        newest = max(report.newest for report in reports.values())
        publication = Publication(
            number=decided.number,
            id=decided.id,
            before=self.newest.number if self.newest is not None else None,
            before_id=self.newest.id if self.newest is not None else "",
            base=decided.base,
            step=publishing.step,
            epoch=publishing.epoch,
            newest=float(newest) if newest else None,
            written=time.time(),
            code=self._code,
            tables={
                name: merged(
                    r.tables[name] for r in reports.values() if name in r.tables
                )
                for name in self._serving.tables
            },
            files=files,
        )
        if self._thread.has_failed:
            raise CheckpointError("the run has failed")
        path = commit(folder, temporary, publication)
        self.newest, self.problem, self._next_is_base = publication, "", False
        self._execution.report(
            PublicationWritten(
                publication.number,
                publication.step,
                str(path),
                sum(each.rows for each in publication.tables.values()),
                sum(each.removed for each in publication.tables.values()),
                is_base=decided.is_base,
            )
        )
        self._remove_old(self.settings.keep)

    def _remove_old(self, keep: int) -> None:
        folder = self.settings.folder
        try:
            remove_old(folder, keep)
        except (OSError, CheckpointError) as error:
            self._execution.report(NodeWarning(f"'{folder}': {describe(error)}"))

    def _fail(self, publishing: Publishing, why: str, *, full: bool) -> None:
        """Warn; the next publication is a base, since removed keys are lost."""
        if self._thread.has_failed:
            return
        self._next_is_base = True
        self.problem = (
            f"the publication of step {publishing.step} could not be written: {why}"
        )
        self._execution.report(NodeWarning(f"{self.problem}; the run continues"))
        if full and self._execution.is_control:
            self._remove_old(max(1, self.settings.keep - 1))  # make room
