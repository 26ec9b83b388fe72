"""Begins an attempt of a run: locks its folder of checkpoints, and chooses where to continue.

The control node locks the folder and removes incomplete checkpoints before it lists the
checkpoints. So no process of an earlier attempt can add one afterwards. An attempt after a
failure begins from the newest checkpoint of the run, if there is one. Otherwise it begins as
the first attempt did.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from placer.channel.interface import Cause
from placer.checkpoint.attempts import (
    AttemptBegun,
    AttemptFailed,
    Line,
    add_attempt,
    attempts_of,
    read_attempts,
    why_no_further,
)
from placer.checkpoint.folder import (
    broken_checkpoints,
    check_best_is_free,
    check_continues,
    list_checkpoints,
    locked,
)
from placer.checkpoint.manifest import Manifest
from placer.errors import CheckpointError
from placer.runtime.control.barrier import BEGIN, barrier
from placer.runtime.control.checkpoint_settings import CheckpointSettings
from placer.runtime.control.events import NodeWarning
from placer.runtime.control.execution import Execution
from placer.runtime.control.failure import FinalError, NoFurtherError

NO_LOCKS = (
    "the file system of '{folder}' has no locks: a process that was cut off from the run"
    " could still write a checkpoint there"
)


@dataclass(slots=True)
class Beginning:
    """The beginning of an attempt on one node.

    Attributes:
        resumes: whether the tables are loaded from a checkpoint.
        is_own: whether the checkpoint is of an earlier attempt of this run. `--shrink` and
            `--partial` then have no effect.
        named: the checkpoint or folder of checkpoints; only on the control node.
        after: the sequence number after which the checkpoints of the folder are of this run.
        lock: unlocks the folder of checkpoints; only on the control node.
    """

    resumes: bool
    is_own: bool = False
    named: Path | None = None
    after: int = 0
    lock: ExitStack = field(default_factory=ExitStack)


def begin_attempt(execution: Execution, contexts: ExitStack) -> Beginning:
    """Begin an attempt. All nodes call this when they have joined.

    Args:
        execution: the node's run.
        contexts: unlocks the folder at its end, unless the caller has taken `lock` over.

    Raises:
        CheckpointError: on the control node, if the folder cannot be locked, or contains
            the checkpoints of another run; with `--restarts`, a FinalError.
        NoFurtherError: on the control node, if the run must not begin another attempt.
    """
    options, settings = execution.options, execution.checkpointing
    named, is_own = options.resume, False
    resumed = named if execution.is_control else None
    begun = Beginning(named is not None, named=resumed)
    contexts.callback(lambda: begun.lock.close())
    if settings is None:
        return begun
    if execution.is_control:
        try:
            named, is_own = _choose(execution, settings, begun)
        except CheckpointError as error:
            if not options.restarts:
                raise
            # Another attempt would find the same.
            raise FinalError(error.message, hint=error.hint) from error
    if options.restarts:
        facts = {
            "resumes": named is not None,
            "own": is_own,
            "continues": execution.continues,
        }
        chosen = barrier(execution.plan, execution.channel, facts, BEGIN)[0]
        begun.resumes, begun.is_own = bool(chosen["resumes"]), bool(chosen["own"])
        execution.continues = bool(chosen["continues"])
    begun.named = named if execution.is_control else None
    return begun


def _choose(
    execution: Execution, settings: CheckpointSettings, begun: Beginning
) -> tuple[Path | None, bool]:
    """Lock the folder, and return the checkpoint to continue from, if any, and whether it is of
    this run."""
    options, named = execution.options, execution.options.resume
    folder = settings.folder
    earlier = _begun(_of_run(folder, execution.run))
    execution.continues = bool(earlier)
    # A process of an earlier attempt may still hold the lock.
    wait = options.join_timeout if earlier or execution.attempt > 1 else 0.0
    has_locks = begun.lock.enter_context(locked(folder, wait=wait))
    if not earlier:
        check_continues(folder, options.resume)
        if options.restarts and not has_locks:
            execution.report(NodeWarning(NO_LOCKS.format(folder=folder)))
    if settings.best is not None:
        check_best_is_free(folder)
    listed = list_checkpoints(folder)
    newest = listed[0][1] if listed else None
    # The folder may have checkpoints of the run that this one resumes.
    begun.after = earlier[0].sequence if earlier else 0
    own = [each for _, each in listed if earlier and each.sequence > begun.after]
    if execution.run:
        # If the newest one is damaged, the attempt continues from an earlier one.
        oldest = min((each.progress.epoch for each in own), default=0)
        _count(execution, folder, newest, oldest)
    is_own = bool(own)
    if earlier and not is_own:
        for _, error in broken_checkpoints(folder):
            execution.report(NodeWarning(error.message))
    return (folder if is_own else named), is_own


def last_attempt(folder: Path, run: str) -> int:
    """Return the number of the last attempt of a run in its folder of checkpoints, or 0 if it
    has not begun one. Raises CheckpointError if the file of attempts cannot be read."""
    return max((each.number for each in _begun(_of_run(folder, run))), default=0)


def _of_run(folder: Path, run: str) -> list[Line]:
    """Return the lines of a run that has an id."""
    return attempts_of(read_attempts(folder), run) if run else []


def _begun(lines: list[Line]) -> list[AttemptBegun]:
    return [line for line in lines if isinstance(line, AttemptBegun)]


def _count(
    execution: Execution, folder: Path, newest: Manifest | None, oldest: int
) -> None:
    """Count this attempt, which may need the passes from `oldest` on. Raises NoFurtherError if the
    run must not begin another one."""
    run, number = execution.run, execution.attempt
    step, sequence = (
        (newest.progress.step, newest.sequence) if newest is not None else (0, 0)
    )
    begun = AttemptBegun(run, number, step, time.time(), sequence)
    add_attempt(folder, begun, oldest=oldest)
    execution.is_counted = True
    lines = _of_run(folder, run)
    why = why_no_further(lines, execution.options.restarts, execution.me.name)
    if not why:
        return
    # A failure without a node has ended the run.
    failed = [each for each in lines if isinstance(each, AttemptFailed) and each.node]
    parts = [failed[-1].node, failed[-1].where, failed[-1].what] if failed else []
    last = ": ".join(filter(None, parts))
    raise NoFurtherError(f"{why}\n  the last failure: {last}" if last else why)


def note_failure(execution: Execution, cause: Cause) -> None:
    """Add the failure of an attempt to the file of attempts, on the control node. Only the
    process that has begun the attempt does: else the folder may belong to another run, or the
    attempt to an earlier process. Warns if the file cannot be written: the next attempt then
    ends the run. The failure that ends the run is also added, for `placer checkpoints`."""
    settings = execution.checkpointing
    if settings is None or not execution.is_counted:
        return
    failed = AttemptFailed(
        execution.run,
        execution.attempt,
        cause.node,
        cause.where,
        cause.what,
        cause.is_error and not cause.is_outage and execution.plan.is_repeatable,
        time.time(),
    )
    try:
        add_attempt(settings.folder, failed)
    except CheckpointError as error:
        execution.report(NodeWarning(error.message))
