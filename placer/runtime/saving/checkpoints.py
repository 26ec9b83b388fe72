"""Saving checkpoints during a run.

After the step of a checkpoint, every node that stores parameters copies them. A thread
of the node then writes its file while the steps continue. The control node's thread
waits until the files of all nodes are on the disk, and writes the manifest. A node that
does not see the control node's folder sends its file as messages.

If a checkpoint cannot be written, the run continues without it, and says so.
"""

from __future__ import annotations

import errno
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

import placer
from placer.channel.interface import Aborted, Key
from placer.checkpoint.finite import find_not_finite
from placer.checkpoint.folder import (
    best_checkpoint,
    check_best_is_free,
    check_continues,
    checkpoint_of,
    link_best,
    list_checkpoints,
    locked,
    remove_old,
)
from placer.checkpoint.manifest import OLD, VERSION, Manifest, Progress, Stored, Watched
from placer.checkpoint.writing import (
    commit,
    describe_file,
    discard,
    pieces_of_file,
    spool,
    temporary_folder,
    write_file,
    write_stream,
    write_tensors,
)
from placer.errors import CheckpointError, RunError
from placer.plan.plan import Plan
from placer.plan.settings.training.optimizers import VALUES
from placer.runtime.asynchronous.local_values import LocalValues
from placer.runtime.control.barrier import (
    FILE_PART,
    STORED,
    VISIBLE,
    barrier,
    receive_json,
    send_json,
)
from placer.runtime.control.byte_messages import receive_parts, send_parts
from placer.runtime.control.events import CheckpointSaved, NodeWarning
from placer.runtime.control.execution import Execution
from placer.runtime.saving.row_files import (
    Saves,
    begin_saves,
    file_of_rows,
    groups_of_file,
    holds_rows,
    stored_sparse,
)
from placer.runtime.saving.start_facts import StartFacts
from placer.runtime.saving.stored_blocks import (
    array_of,
    file_of,
    held_blocks,
    holders,
    stored_parameters,
)
from placer.tables.block_table import BlockTable, Snapshot

if TYPE_CHECKING:
    from placer.tables.sparse.table import SparseTable

FAILED_WAIT: Final = 5.0
"""Seconds that a run that has failed waits for the thread that writes checkpoints."""


class Report(msgspec.Struct, frozen=True):
    """What a node tells the control node about its file of a checkpoint, and that of the
    rows of sparse tables; `is_full` says that the disk is."""

    stored: Stored | None = None
    rows: Stored | None = None
    updates: dict[str, tuple[int, ...]] = {}
    sent: bool = False
    problem: str = ""
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class _Job:
    """A checkpoint to write: `progress` is that of the run, on the control node only.
    `saves` are those of the sparse tables, which end with `contexts`; `problem` says why
    there are none."""

    step: int
    saves: Saves
    contexts: ExitStack
    problem: str
    snapshots: Mapping[str, Snapshot]
    updates: Mapping[str, tuple[int, ...]]
    progress: Progress | None


class Checkpoints:
    """One node's part in the checkpoints of a run, as a context manager.

    Entering it is collective: all nodes do it at the same point.

    Args:
        execution: the node's run.
        tables: the tables of the node, by name.
        local: values of a worker's own, by the name of their table.
        sparse: the sparse tables of the node, by name.
        facts: what the manifests have from the start of the run.
        before_commit: called before a manifest is written.

    Attributes:
        last_step: the step of the last checkpoint, of which all nodes have a part.
        saved: the last complete checkpoint, on the control node.
        best: the complete checkpoint of the best evaluation, on the control node, if
            there is one. It may be in the folder of the checkpoint from which the run
            continues.
        seconds: how long the steps have waited for checkpoints; the caller adds it up.

    Raises:
        CheckpointError: on the control node, for a folder that cannot be written.
    """

    def __init__(
        self,
        execution: Execution,
        tables: Mapping[str, BlockTable],
        local: Mapping[str, LocalValues],
        sparse: Mapping[str, SparseTable],
        facts: StartFacts,
        before_commit: Callable[[], None],
    ) -> None:
        assert execution.checkpointing is not None
        self.settings = execution.checkpointing
        self._before_commit = before_commit
        self.last_step = 0
        self.saved: Path | None = None
        self.best: Path | None = None
        self._best_before: Path | None = None
        self.problem = ""
        self.seconds = 0.0
        self._execution, self._tables, self._facts = execution, tables, facts
        self._local, self._sparse = local, sparse
        self._held = held_blocks(execution.plan, execution.me.name)
        self._queue: queue.Queue[_Job | None] = queue.Queue()
        self._idle = threading.Semaphore(1)
        self._reuse: dict[str, Snapshot] = {}
        self._exits = ExitStack()
        self._is_failed = False
        self._run = ""
        self._sees_folder = True
        self._sequence = 0
        self._last_time = time.monotonic()
        self._thread = threading.Thread(
            target=self._write_all,
            name=f"placer checkpoints of {execution.me.name}",
            daemon=True,
        )

    def __enter__(self) -> Checkpoints:
        with ExitStack() as exits:
            if self._execution.is_control:
                folder, resumed = self.settings.folder, self._execution.options.resume
                exits.enter_context(locked(folder))
                check_continues(folder, resumed)
                if self.settings.best is not None:
                    check_best_is_free(folder)
                listed = list_checkpoints(folder)
                self.best = best_checkpoint(folder, listed)
                self._sequence = listed[0][1].sequence if listed else 0
            self._run, self._sees_folder = _share_folder(
                self._execution, self.settings.folder
            )
            self._exits = exits.pop_all()
        self._thread.start()
        return self

    def take_over_best(self, best: Watched, folder: Path) -> None:
        """Take over the best evaluation so far, of the run that is continued, whose
        checkpoints are in `folder`; warn if its checkpoint is not there.

        Called on the control node before the first step.
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
                    f"the checkpoint of the best evaluation so far is not in '{folder}':"
                    f" {best.metric} {best.value:.4g} after step {best.step}"
                )
            )

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After a failure nothing is committed any more, so that the folder can belong to
        # another run of this process. The thread may wait for a node or the disk.
        self._is_failed = kind is not None
        self._queue.put(None)
        self._thread.join(None if kind is None else FAILED_WAIT)

    @property
    def is_writing(self) -> bool:
        """Whether the last checkpoint is still being written."""
        if self._idle.acquire(blocking=False):
            self._idle.release()
            return False
        return True

    def is_due(self, step: int, ends_epoch: bool) -> bool:
        """Whether the spec or the options fix that one is saved after this step."""
        return self.settings.is_due(step, ends_epoch=ends_epoch)

    def is_time(self) -> bool:
        """Whether the control node should request a checkpoint, for an interval of
        time, which starts when the last checkpoint is complete."""
        every = self.settings.every
        if every.unit != "seconds" or time.monotonic() - self._last_time < every.number:
            return False
        if self.is_writing:
            return False
        self._last_time = time.monotonic()
        return True

    def save(self, step: int, progress: Progress | None) -> None:
        """Copy the node's blocks after a step, and write them in the background.

        Waits for the last checkpoint if it is still being written. A checkpoint of the
        same step is saved once.
        """
        if step == self.last_step:
            return
        self._idle.acquire()  # released when the checkpoint is written
        snapshots = {
            name: self._tables[name].snapshot(blocks, self._reuse.get(name))
            for name, blocks in self._held.items()
        }
        for name, local in self._local.items():
            snapshots[name][OLD] = tuple(old.copy() for old in local.old)
        if self._sees_folder:  # else the channel may still have to send them
            self._reuse = {n: s for n, s in snapshots.items() if _is_in_memory(s)}
        updates = {name: self._tables[name].updates for name in self._held}
        self.last_step = step
        saves: Saves = {}
        contexts, problem = ExitStack(), ""
        try:
            saves = begin_saves(self._sparse, contexts)
        except RunError as error:  # a table has no room for it
            problem = error.message
        self._queue.put(
            _Job(step, saves, contexts, problem, snapshots, updates, progress)
        )

    def wait(self) -> None:
        """Wait until the last checkpoint is written, or has failed."""
        with self._idle:
            pass

    # Run by the thread.

    def _write_all(self) -> None:
        # The thread unlocks the folder: after a failure it may still write to it when
        # the run does not wait for it any more.
        with self._exits:
            while self._write_next():
                pass

    def _write_next(self) -> bool:
        """Write the next checkpoint; return whether there was another one."""
        job = self._queue.get()
        if job is None:
            return False
        try:
            self._write(job)
        except Aborted:
            pass  # the compute thread gets it too, and ends the run
        except Exception as error:
            self._fail(job.step, _describe(error), _is_full(error))
        finally:
            job.contexts.close()
            del job  # a snapshot may take memory of a device
            self._last_time = time.monotonic()
            self._idle.release()
        return True

    def _write(self, job: _Job) -> None:
        execution = self._execution
        temporary = temporary_folder(self.settings.folder, job.step, self._run)
        report, pieces = self._write_own(temporary, job)
        row_pieces: Sequence[memoryview] = ()
        if not report.problem and self._sparse:
            report, row_pieces = self._write_rows(temporary, job, report)
        if not execution.is_control:
            if execution.me.name not in _writing_nodes(execution.plan):
                return  # the control node waits for no report
            key = Key(STORED, job.step)
            send_json(
                execution.channel,
                execution.plan.control,
                key,
                msgspec.to_builtins(report),
            )
            if report.sent:
                key, rows_key = Key(FILE_PART, job.step), Key(FILE_PART, job.step, 1)
                send_parts(execution.channel, execution.plan.control, key, pieces)
                send_parts(
                    execution.channel, execution.plan.control, rows_key, row_pieces
                )
            return
        try:
            self._complete(temporary, job, report)
        except BaseException:
            discard(temporary)
            raise

    def _complete(self, temporary: Path, job: _Job, report: Report) -> None:
        """Wait until all nodes have written their files, and commit the checkpoint.

        Run by the control node, whose own report is `report`.
        """
        execution = self._execution
        reports = {execution.me.name: report}
        for node in _writing_nodes(execution.plan):
            if node != execution.me.name:
                reports[node] = receive_json(
                    execution.channel, node, Key(STORED, job.step), Report
                )
                if reports[node].sent:
                    reports[node] = self._receive_file(
                        temporary, node, reports[node], job.step
                    )
        problems = [
            f"{node}: {each.problem}" for node, each in reports.items() if each.problem
        ]
        if problems or job.progress is None:
            discard(temporary)
            if problems:
                is_full = any(each.is_full for each in reports.values())
                self._fail(job.step, "; ".join(problems), is_full)
            return
        self._commit(temporary, job.step, job.progress, reports)

    def _write_own(
        self, temporary: Path, job: _Job
    ) -> tuple[Report, Sequence[memoryview]]:
        """Write this node's file, or return its bytes if it does not see the folder."""
        execution, updates = self._execution, dict(job.updates)
        try:
            tensors: dict[str, Any] = {}
            for table in execution.me.tables:
                for array, values in job.snapshots.get(table.name, {}).items():
                    for index, value in zip(
                        self._held[table.name], values, strict=True
                    ):
                        name = table.blocks[index].name
                        if array != VALUES:
                            name += f"/{array_of(table, array)}"
                        tensors[name] = np.asarray(value)
            if not tensors:
                return Report(), ()
            if execution.plan.nan == "stop" and (problem := find_not_finite(tensors)):
                return Report(problem=problem), ()
            if self._sees_folder:
                name = file_of(execution.me.name)
                stored = write_tensors(temporary, name, tensors)
                return Report(stored, updates=updates), ()
            pieces = pieces_of_file(tensors)
            return Report(describe_file(pieces), updates=updates, sent=True), pieces
        except Exception as error:  # the control node waits for a report
            return _failed(error), ()

    def _write_rows(
        self, temporary: Path, job: _Job, report: Report
    ) -> tuple[Report, Sequence[memoryview]]:
        """Write this node's file of sparse tables, or return its bytes if it does not see
        the folder; return its report."""
        execution = self._execution
        plan, me = execution.plan, execution.me.name
        if job.problem:
            return Report(problem=job.problem), ()
        try:
            groups = groups_of_file(plan, me, job.saves, finite=plan.nan == "stop")
            if self._sees_folder:
                stored = write_stream(temporary, file_of_rows(me), groups)
                return replace(report, rows=stored), ()
            stored, content = spool(groups)
            return replace(report, rows=stored, sent=True), [content]
        except Exception as error:  # the control node waits for a report
            return _failed(error), ()

    def _receive_file(
        self, temporary: Path, node: str, report: Report, step: int
    ) -> Report:
        """Write the files of a node that does not see the folder; return its report."""
        files = (file_of(node), report.stored), (file_of_rows(node), report.rows)
        for number, (name, stored) in enumerate(files):
            if stored is None:
                continue
            channel, key = self._execution.channel, Key(FILE_PART, step, number)
            parts = receive_parts(channel, node, key, stored.nbytes)
            try:
                write_file(temporary, name, parts)
            except OSError as error:
                for _ in parts:
                    pass  # the sender waits until they are received
                report = _failed(error)
        return report

    def _commit(
        self,
        temporary: Path,
        step: int,
        progress: Progress,
        reports: Mapping[str, Report],
    ) -> None:
        plan, folder = self._execution.plan, self.settings.folder
        self._sequence += 1
        manifest = Manifest(
            version=VERSION,
            placer=placer.__version__,
            name=plan.name,
            sequence=self._sequence,
            build=plan.digest,
            placement=self._facts.placement,
            computation=self._facts.computation,
            seed=plan.seed,
            train=self._facts.train,
            evaluation=self._facts.evaluation,
            progress=progress,
            parameters=stored_parameters(
                plan, {node: report.updates for node, report in reports.items()}
            ),
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
        )
        self._before_commit()
        if self._is_failed:
            raise CheckpointError("the run has failed")
        self.saved = commit(folder, temporary, manifest)
        self.problem = ""
        is_best = progress.best is not None and progress.best.step == step
        self._execution.report(CheckpointSaved(step, str(self.saved), is_best))
        try:
            if progress.best is not None:
                link_best(folder, progress.best)
        except (OSError, CheckpointError) as error:
            self._execution.report(NodeWarning(f"'{folder}': {_describe(error)}"))
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
            self._execution.report(NodeWarning(f"'{folder}': {_describe(error)}"))

    def _fail(self, step: int, problem: str, is_full: bool) -> None:
        if self._is_failed:
            return
        self.problem = f"the checkpoint of step {step} could not be written: {problem}"
        self._execution.report(NodeWarning(f"{self.problem}; the run continues"))
        if is_full and self._execution.is_control:
            # The next one would have taken the place of the oldest one.
            self._remove_old(max(1, self.settings.keep - 1))


def _writing_nodes(plan: Plan) -> list[str]:
    """Return the nodes that write files of a checkpoint, in the order of the plan."""
    dense = {*holders(plan)}
    names = (node.name for node in plan.nodes)
    return [name for name in names if name in dense or holds_rows(plan, name)]


def _is_in_memory(snapshot: Snapshot) -> bool:
    """Whether the arrays of a snapshot are on the host, so that they can be reused."""
    return all(
        isinstance(a, np.ndarray) for arrays in snapshot.values() for a in arrays
    )


def _share_folder(execution: Execution, folder: Path) -> tuple[str, bool]:
    """Return the name of the run in temporary folders, and whether this node sees the
    control node's folder: it does if it finds a file there with the run's name.

    All nodes call this at the same point.
    """
    plan, channel = execution.plan, execution.channel
    run = secrets.token_hex(8) if execution.is_control else ""
    if execution.is_control:
        try:
            (folder / _sign(run)).write_text(run)
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be written to '{folder}': {error.strerror}"
            ) from error
    run = barrier(plan, channel, {"run": run}, VISIBLE)[0]["run"]
    try:
        sees = (folder / _sign(run)).read_text() == run
    except OSError:
        sees = False
    barrier(plan, channel, {}, VISIBLE)
    if execution.is_control:
        (folder / _sign(run)).unlink(missing_ok=True)
    return run, sees


def _sign(run: str) -> str:
    """Return the name of the file by which nodes find out what they see."""
    return f".run-{run}.tmp"


def _failed(error: Exception) -> Report:
    """Return the report of a node that cannot write its file."""
    return Report(problem=_describe(error), is_full=_is_full(error))


def _is_full(error: Exception) -> bool:
    """Whether an error says that a disk is full."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, OSError) and error.errno in full


def _describe(error: Exception) -> str:
    """Return what went wrong, without the path of a temporary file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
