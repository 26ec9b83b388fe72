"""Resumes a run from a checkpoint, which may come from another placement.

The control node chooses the checkpoint, and all nodes load their tables from it. If a node
finds a damaged file, all nodes try the previous checkpoint in the folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from placer.checkpoint.choice import candidates, is_checkpoint, is_first_start
from placer.checkpoint.folder import list_checkpoints, set_aside
from placer.checkpoint.manifest import FILE, Progress
from placer.checkpoint.reading import Checkpoint
from placer.errors import CheckpointError
from placer.plan.plan import Plan
from placer.plan.settings.data.stream import NOW
from placer.runtime.asynchronous.local_values import LocalValues
from placer.runtime.batches.batches import Batches
from placer.runtime.control.barrier import RESUME, barrier
from placer.runtime.control.events import NodeWarning, Notice, Resumed
from placer.runtime.control.execution import Execution
from placer.runtime.control.failure import FinalError
from placer.runtime.control.handshake import fingerprint
from placer.runtime.saving.beginning import Beginning
from placer.runtime.saving.resumed_tables import Choice, load_tables
from placer.runtime.saving.same_model import (
    check_not_later,
    check_same_data,
    check_same_model,
    differences,
    has_new_rows,
    is_inside_pass,
    rows_left,
    trained_file,
)
from placer.runtime.saving.start_facts import StartFacts
from placer.tables.block_table import BlockTable

if TYPE_CHECKING:
    from placer.tables.sparse.table import SparseTable

NOT_KEPT: Final = (
    "this run saves no checkpoints; add 'checkpoint' (--checkpoint DIR) to save some"
)
"""The warning of a resumed run that saves no checkpoints."""
NONE_YET: Final = "has no checkpoints yet: the run starts at step 1"
"""The warning of a run with `--resume` whose folder of checkpoints is still empty."""


@dataclass(frozen=True, slots=True)
class Continued:
    """The position of the earlier run, and its checkpoint.

    Attributes:
        progress: the position.
        checkpoint: the path; only on the control node.
        written: the time at which the checkpoint was written, in seconds since 1970; 0 except
            on the control node.
        trained: the file of fixed rows that the earlier run has trained, if this one is a
            stream; empty except on the control node.
    """

    progress: Progress
    checkpoint: Path
    written: float = 0.0
    trained: str = ""

    def go_on_with(self, execution: Execution, batches: Batches) -> Batches:
        """Return the batches of the run for the steps after the position. Those of a stream
        end there, until the next pass is entered."""
        progress, settings = self.progress, execution.plan.settings.train
        if execution.plan.train.stream is not None:
            return batches.after(progress.step, progress.epoch).until(progress.step, 0)
        return batches.after(*progress.before).until(
            execution.options.steps, settings.epochs
        )


def resume(
    execution: Execution,
    beginning: Beginning,
    tables: Mapping[str, BlockTable],
    local: Mapping[str, LocalValues],
    sparse: dict[str, SparseTable],
    facts: StartFacts,
    batches: Batches,
) -> Continued | None:
    """Load the tables of a node from the checkpoint of an attempt.

    All nodes call this at the same point. If `--resume` names the run's own folder of
    checkpoints and it is empty, the run starts at step 1. The same command can therefore
    start and continue a run.

    Args:
        beginning: the beginning of the attempt.
        local: the worker's local values, by the name of their table.
        facts: the facts of this run, to compare with the checkpoint.
        batches: the batches of this run.

    Returns:
        The start of the resumed run; None if the run starts at step 1.

    Raises:
        CheckpointError: on the control node, if no checkpoint can be read, or if it does
            not fit the model, the data or the length of the run.
    """
    plan, channel = execution.plan, execution.channel
    named = beginning.named
    tried = (
        candidates(named, lambda why: execution.report(NodeWarning(why)))
        if named is not None
        else iter(())
    )
    if beginning.is_own and named is not None:
        tried = _of_this_run(tried, named, beginning.after)
    partial = execution.options.partial and not beginning.is_own
    is_stream, trained = plan.train.stream is not None, ""
    while True:
        choice, checkpoint = Choice(), None
        if named is not None and not _is_first_start(execution, named):
            checkpoint = next(tried)
            check_same_model(checkpoint.manifest, plan, execution.report, partial)
            manifest = checkpoint.manifest
            try:
                # A run over fixed rows can go on with a stream.
                becomes = is_stream and manifest.progress.stream is None
                trained = trained_file(manifest) if becomes else ""
                allows_new = execution.options.new_rows and not beginning.is_own
                is_new = (allows_new or becomes) and has_new_rows(manifest, facts)
                if not is_new:
                    check_same_data(manifest, facts)
            except CheckpointError as error:
                if not execution.options.restarts:
                    raise
                # Another attempt would find the same.
                raise FinalError(error.message, hint=error.hint) from error
            stored = manifest.progress
            if is_new:
                stored = _for_new_rows(stored)
            skips = execution.options.skip_pass and not beginning.is_own
            if skips and not is_inside_pass(stored, batches.order.batch):
                raise CheckpointError(
                    f"--skip-pass would leave out nothing: the checkpoint of step"
                    f" {stored.step} is not inside a pass",
                    hint="leave out --skip-pass",
                )
            last: int | None = execution.options.steps
            if not is_stream:
                passing = batches.after(*stored.before)
                last = passing.until(last, plan.settings.train.epochs).last_step
            if last is not None:
                check_not_later(manifest, last)
            choice = Choice(
                str(checkpoint.folder),
                fingerprint(checkpoint.folder / FILE),
                has_new_rows=is_new,
                skips_pass=skips,
            )
        reports = barrier(plan, channel, msgspec.to_builtins(choice), RESUME)
        choice = msgspec.convert(reports[0], Choice)
        if not choice.path:
            return None
        progress, problem = None, ""
        try:
            progress = load_tables(execution, tables, local, sparse, choice, checkpoint)
        except CheckpointError as error:
            problem = error.message
        problem = _first_problem(plan, barrier(plan, channel, {"": problem}, RESUME))
        if not problem:
            assert progress is not None
            break
        if named is not None:
            if is_checkpoint(named):
                raise CheckpointError(
                    problem,
                    hint="name the folder of checkpoints to use the newest intact one",
                )
            execution.report(NodeWarning(f"{problem}; trying an earlier checkpoint"))
    if choice.has_new_rows:
        progress = _for_new_rows(progress)
    if choice.skips_pass:
        kept = progress.stream, progress.best, progress.stopping
        progress = _for_new_rows(progress)
        stream, best, stopping = kept
        assert stream is not None
        files = (file.path for file in stream.current.files)  # they may have changed
        stream = replace(stream, warned=(*stream.warned, *files))
        progress = replace(progress, stream=stream, best=best, stopping=stopping)
    if checkpoint is not None:
        manifest = checkpoint.manifest
        file = trained if progress.stream is None else progress.stream.last
        event = Resumed(progress.step, choice.path, is_stream=is_stream, last=file)
        if choice.has_new_rows or choice.skips_pass:
            left_out = rows_left(manifest)
            event = replace(event, epoch=progress.epoch + 1, left_out=left_out)
        differs = differences(manifest, plan, facts, other_rows=choice.has_new_rows)
        event = replace(
            event, differs="; ".join(differs), is_repeatable=plan.is_repeatable
        )
        execution.report(event)
        if execution.checkpointing is None:
            execution.report(NodeWarning(NOT_KEPT))
        elif is_stream and not beginning.is_own:
            _warn_of_newer(execution, execution.checkpointing.folder, checkpoint)
    written = checkpoint.manifest.written if checkpoint is not None else 0.0
    return Continued(progress, Path(choice.path), written, trained)


def _warn_of_newer(execution: Execution, folder: Path, checkpoint: Checkpoint) -> None:
    """Warn if a stream goes back, because its folder has a newer checkpoint."""
    manifest, named = checkpoint.manifest, execution.options.resume
    if checkpoint.folder.parent != folder or named is None or not is_checkpoint(named):
        return
    newest = max(list_checkpoints(folder), key=lambda each: each[1].sequence)[1]
    if newest.sequence > manifest.sequence:
        step, newer = manifest.progress.step, newest.progress.step
        text = f"the run goes back from step {newer}, the newest checkpoint, to step {step}"
        execution.report(NodeWarning(text))


def _for_new_rows(progress: Progress) -> Progress:
    """Return the position of a checkpoint for a run that goes on with other rows. All
    asynchronous workers begin them after the step of the slowest one."""
    return replace(
        progress,
        before=(progress.step, progress.epoch),
        stream=None,
        batches=0,
        rows=0,
        statistics={},
        best=None,
        stopping=None,
        workers={},
        ahead=(),
    )


def _of_this_run(
    tried: Iterator[Checkpoint], folder: Path, after: int
) -> Iterator[Checkpoint]:
    """Yield the checkpoints of this run. Those up to `after` are of the run that it resumes:
    `--shrink` and `--partial` apply to them.

    If none is left, set the damaged ones aside, and raise CheckpointError: the next attempt
    begins as the first one did. Raises FinalError if one of them is not damaged.
    """
    with suppress(CheckpointError):  # none is left
        yield from takewhile(lambda each: each.manifest.sequence > after, tried)
    own = [path for path, each in list_checkpoints(folder) if each.sequence > after]
    for path in own:
        with suppress(CheckpointError):  # it is damaged
            Checkpoint(path).verify()
            raise FinalError(
                f"the nodes cannot load '{path}', but it is not damaged",
                hint="see the warnings before, and continue the run with --resume",
            )
    names = ", ".join(f"'{each.name}'" for each in set_aside(own))
    raise CheckpointError(
        f"all checkpoints of this run are damaged, and are named {names} now: the run goes"
        " back to its beginning"
    )


def _is_first_start(execution: Execution, named: Path) -> bool:
    """Whether the run starts at step 1 because its own folder is still empty; say so."""
    settings = execution.checkpointing
    if settings is None or not is_first_start(settings.folder, named):
        return False
    # From cron, the first command is a normal one.
    kind = Notice if execution.options.until == NOW else NodeWarning
    execution.report(kind(f"'{named}' {NONE_YET}"))
    return True


def _first_problem(plan: Plan, reports: Sequence[Mapping[str, str]]) -> str:
    for node, report in zip(plan.nodes, reports, strict=True):
        if report[""]:
            return f"{node.name}: {report['']}"
    return ""
