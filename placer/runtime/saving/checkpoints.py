"""Saves checkpoints during a run.

After the step of a checkpoint, every node copies the parameters that it stores. A thread of
the node then writes the files while training continues. The control node's thread waits
until the files of all nodes are on disk, and writes the manifest. A node without access to
the control node's folder sends its files as messages.

If a checkpoint cannot be written, the run warns and continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import structs

import placer
from placer.channel.interface import Aborted
from placer.checkpoint.folder import (
    best_checkpoint,
    checkpoint_of,
    link_best,
    list_checkpoints,
    remove_old,
)
from placer.checkpoint.manifest import (
    AVERAGED,
    OLD,
    Manifest,
    Progress,
    Watched,
    version_of,
)
from placer.checkpoint.writing import commit, discard, temporary_folder
from placer.errors import CheckpointError, RunError
from placer.plan.settings_by_key import settings_by_key
from placer.runtime.asynchronous.local_values import LocalValues
from placer.runtime.asynchronous.recorded_order import ALL_EDGES, SAVED, Order
from placer.runtime.control.events import CheckpointSaved, NodeWarning
from placer.runtime.control.execution import Execution
from placer.runtime.saving.checkpoint_files import (
    Job,
    Report,
    receive_files,
    reporting_nodes,
    send_files,
    write_files,
)
from placer.runtime.saving.problems import describe, is_full
from placer.runtime.saving.published_files import NodeRows
from placer.runtime.saving.publishing import Publishing
from placer.runtime.saving.resumed_checkpoint import Continued
from placer.runtime.saving.row_files import (
    Saves,
    begin_saves,
    file_of_rows,
    stored_sparse,
)
from placer.runtime.saving.shared_folder import share_folder
from placer.runtime.saving.start_facts import StartFacts
from placer.runtime.saving.stored_blocks import file_of, held_blocks, stored_parameters
from placer.runtime.saving.writing_thread import WritingThread
from placer.tables.block_table import BlockTable, Snapshot

if TYPE_CHECKING:
    from placer.tables.sparse.table import SparseTable

CHOSEN_AT_LEAST: Final = 10.0
"""The shortest interval `auto` between two checkpoints, in seconds."""
PER_WAIT, PER_WRITING = 500.0, 20.0
"""The interval `auto` is at least so many times the wait for the last checkpoint, and the time
of its writing. So steps wait 0.2 % of the time, and 5 % of the time a thread writes."""


class Checkpoints:
    """One node's part in the checkpoints of a run.

    Args:
        local: the worker's local values, by the name of their table.
        facts: the facts about the start of the run, for the manifests.
        order: the recorded order of the node.
        before_commit: called before a manifest is written.
        thread: writes the checkpoints. It holds the lock of the folder.

    Attributes:
        settings: the checkpoint settings.
        last: the position of the last checkpoint that was begun: its step, and the steps of workers
            that train asynchronously.
        saved: the last complete checkpoint; only on the control node.
        best: the complete checkpoint with the best evaluation, if any; only on the control
            node. In a resumed run, it may be in the folder of the earlier run.
        problem: why the last checkpoint could not be written; empty if it could.
        seconds: the time that the steps have waited for checkpoints; the caller updates it.
    """

    def __init__(
        self,
        execution: Execution,
        tables: Mapping[str, BlockTable],
        local: Mapping[str, LocalValues],
        sparse: Mapping[str, SparseTable],
        facts: StartFacts,
        order: Order,
        before_commit: Callable[[], None],
        thread: WritingThread,
    ) -> None:
        assert execution.checkpointing is not None
        self.settings = execution.checkpointing
        self._order, self._before_commit = order, before_commit
        self.last: tuple[int, Mapping[str, int]] = 0, {}
        self.saved: Path | None = None
        self.best: Path | None = None
        self._best_before: Path | None = None
        self.problem = ""
        self.seconds = 0.0
        self._execution, self._tables, self._facts = execution, tables, facts
        self._local, self._sparse = local, sparse
        self._held = held_blocks(execution.plan, execution.me.name)
        self._averaged = [
            table.name
            for table in execution.me.tables
            if table.name in self._held and table.averages
        ]
        self._reuse: dict[str, Snapshot] = {}
        self.thread = thread
        self._run = ""
        self._sees_folder = True
        self._sequence = 0
        self._last_time = time.monotonic()
        self._waited = self._wrote = 0.0

    def begin(self) -> None:
        """Begin to use the folder. All nodes must call this at the same point.

        Raises CheckpointError on the control node, if the folder cannot be written to.
        """
        folder = self.settings.folder
        if self._execution.is_control:
            listed = list_checkpoints(folder)
            self.best = best_checkpoint(folder, listed)
            self._sequence = listed[0][1].sequence if listed else 0
        self._run, self._sees_folder = share_folder(
            self._execution, folder, "checkpoints"
        )

    def take_over_best(self, best: Watched, folder: Path) -> None:
        """Adopt the best evaluation of the earlier run, whose checkpoints are in `folder`.

        Called on the control node before the first step. Warns if the checkpoint is missing.
        """
        if self.best is not None:
            return
        try:
            self._best_before = checkpoint_of(best, list_checkpoints(folder))
        except CheckpointError as error:
            self._execution.report(NodeWarning(error.message))
        self.best = self._best_before
        if self.best is None:
            self._execution.report(
                NodeWarning(
                    f"the checkpoint with the best evaluation so far is not in '{folder}':"
                    f" {best.metric} {best.value:.4g} after step {best.step}"
                )
            )

    def is_due(self, step: int, ends_epoch: bool) -> bool:
        """Whether the spec or the options schedule a checkpoint after this step."""
        return self.settings.is_due(step, ends_epoch=ends_epoch)

    def is_time(self) -> bool:
        """Whether the control node should request a checkpoint because the interval is over.

        The interval is a time, and starts when the last checkpoint is complete.
        """
        every = self.settings.every
        if every.unit == "auto":
            chosen = PER_WAIT * self._waited, PER_WRITING * self._wrote
            seconds = max(CHOSEN_AT_LEAST, *chosen)
        elif every.unit == "seconds":
            seconds = every.number
        else:
            return False
        if time.monotonic() - self._last_time < seconds:
            return False
        if self.thread.is_writing:
            return False
        self._last_time = time.monotonic()
        return True

    def continue_from(self, continued: Continued, *, is_own: bool) -> None:
        """Note the checkpoint from which the run continues. A checkpoint in this folder is not
        written again, unless `--shrink` has changed its tables.

        After a failure (`is_own`), the interval counts from the time at which the checkpoint
        was written. Otherwise, failures that are closer together than the interval would
        always return to the same checkpoint.
        """
        is_here = (
            continued.checkpoint.resolve().parent == self.settings.folder.resolve()
        )
        if is_own or (is_here and not self._execution.options.shrink):
            self.last = continued.progress.step, continued.progress.workers
        if is_own and self._execution.is_control:
            self.saved = continued.checkpoint
            self._last_time -= max(0.0, time.time() - continued.written)

    def note_wait(self, seconds: float) -> None:
        """Note that the steps have waited this long for a checkpoint."""
        self.seconds += seconds
        self._waited = seconds

    def save(
        self,
        step: int,
        workers: Mapping[str, int],
        progress: Progress | None,
        publishing: Publishing | None = None,
    ) -> None:
        """Copy the node's blocks after a step, and write them in the background.

        If the last checkpoint is still being written, wait for it first. A second call for the same
        steps has no effect.

        Args:
            step: the last step that all workers have finished.
            workers: the last steps of workers that train asynchronously.
            progress: the position of the run, on the control node.
            publishing: a publication of the same step. It has the rows of sparse tables that are
                read for the checkpoint.
        """
        if step == 0 or (step, workers) == self.last:
            assert publishing is None
            return
        self.thread.wait()
        self._order.add(SAVED, ALL_EDGES, step)
        snapshots = {
            name: self._tables[name].snapshot(blocks, self._reuse.get(name))
            for name, blocks in self._held.items()
        }
        for name in self._averaged:
            averaged = self._tables[name].evaluation_values()
            snapshots[name][AVERAGED] = tuple(averaged[i] for i in self._held[name])
        for name, local in self._local.items():
            snapshots[name][OLD] = tuple(old.copy() for old in local.old)
        if self._sees_folder:  # otherwise the channel may still send the arrays
            self._reuse = {n: s for n, s in snapshots.items() if _is_in_memory(s)}
        updates = {name: self._tables[name].updates for name in self._held}
        self.last = step, workers
        saves: Saves = {}
        contexts, problem = ExitStack(), ""
        try:
            saves = begin_saves(self._sparse, contexts)
        except RunError as error:  # a table has not enough memory for a save
            problem = error.message
        job = Job(
            step, saves, contexts, problem, snapshots, updates, progress, publishing
        )
        self.thread.put(partial(self._write_job, job))

    # The following methods run in the thread.

    def _write_job(self, job: Job) -> None:
        start, publishing = time.monotonic(), job.publishing
        rows = publishing.make_rows(publishing) if publishing is not None else None
        try:
            self._write(job, rows)
        except Aborted:
            pass  # the compute thread also raises this error and ends the run
        except Exception as error:
            self._fail(job.step, describe(error), is_full(error))
            if rows is not None:
                rows.fail(describe(error))
        finally:
            job.contexts.close()
            self._last_time = time.monotonic()
            self._wrote = self._last_time - start
        if publishing is not None and rows is not None:
            try:
                publishing.finish(publishing, rows)
            finally:
                rows.close()

    def _write(self, job: Job, published: NodeRows | None) -> None:
        execution = self._execution
        temporary = temporary_folder(self.settings.folder, job.step, self._run)
        report, pieces = write_files(
            execution,
            temporary,
            job,
            self._held,
            self._order.sync,
            sees_folder=self._sees_folder,
            published=published,
        )
        if published is not None:
            published.fail(report.problem)
        if not execution.is_control:
            send_files(execution, job.step, report, pieces)
            return
        try:
            self._complete(temporary, job, report)
        except BaseException:
            discard(temporary)
            raise

    def _complete(self, temporary: Path, job: Job, report: Report) -> None:
        execution = self._execution
        reports = {execution.me.name: report}
        for node in reporting_nodes(execution):
            if node != execution.me.name:
                reports[node] = receive_files(execution, temporary, node, job.step)
        problems = [
            f"{node}: {each.problem}" for node, each in reports.items() if each.problem
        ]
        if problems or job.progress is None:
            discard(temporary)
            if problems:
                self._fail(
                    job.step,
                    "; ".join(problems),
                    any(each.is_full for each in reports.values()),
                )
            return
        self._commit(temporary, job.step, job.progress, reports)

    def _commit(
        self,
        temporary: Path,
        step: int,
        progress: Progress,
        reports: Mapping[str, Report],
    ) -> None:
        plan, folder = self._execution.plan, self.settings.folder
        self._sequence += 1
        train = self._facts.train
        if progress.stream is not None:
            train = structs.replace(train, rows=progress.stream.current.rows)
        parameters = stored_parameters(
            plan, {node: report.updates for node, report in reports.items()}
        )
        manifest = Manifest(
            version=version_of(parameters, progress),
            placer=placer.__version__,
            name=plan.name,
            sequence=self._sequence,
            build=plan.digest,
            placement=self._facts.placement,
            computation=self._facts.computation,
            seed=plan.settings.seed,
            train=train,
            evaluation=self._facts.evaluation,
            progress=progress,
            parameters=parameters,
            files={
                name: stored
                for node, report in reports.items()
                for name, stored in (
                    (file_of(node), report.stored),
                    (file_of_rows(node), report.rows),
                )
                if stored is not None
            },
            sparse=stored_sparse(plan),
            machines=self._facts.machines,
            written=time.time(),
            parts=plan.parts,
            settings=settings_by_key(plan),
        )
        self._before_commit()
        if self.thread.has_failed:
            raise CheckpointError("the run has failed")
        self.saved = commit(folder, temporary, manifest)
        self.problem = ""
        is_best = progress.best is not None and progress.best.step == step
        self._execution.report(CheckpointSaved(step, str(self.saved), is_best))
        try:
            if progress.best is not None:
                link_best(folder, progress.best)
        except (OSError, CheckpointError) as error:
            self._execution.report(NodeWarning(f"'{folder}': {describe(error)}"))
        self._remove_old(self.settings.keep)

    def _remove_old(self, keep: int) -> None:
        folder = self.settings.folder
        try:
            remove_old(folder, keep)
            self.best = best_checkpoint(folder, list_checkpoints(folder))
            before = self._best_before
            if self.best is None and before is not None and before.is_dir():
                self.best = before
        except (OSError, CheckpointError) as error:
            self._execution.report(NodeWarning(f"'{folder}': {describe(error)}"))

    def _fail(self, step: int, problem: str, is_full: bool) -> None:
        if self.thread.has_failed:
            return
        self.problem = f"the checkpoint of step {step} could not be written: {problem}"
        self._execution.report(NodeWarning(f"{self.problem}; the run continues"))
        if is_full and self._execution.is_control:
            # Make room. The new checkpoint would have replaced the oldest one anyway.
            self._remove_old(max(1, self.settings.keep - 1))


def _is_in_memory(snapshot: Snapshot) -> bool:
    """Whether the arrays of a snapshot are in host memory, where they can be reused."""
    return all(
        isinstance(a, np.ndarray) for arrays in snapshot.values() for a in arrays
    )
