"""Decides how a run reacts to signals, in processes and in threads.

If the run saves parameters or checkpoints, the first signal stops all nodes after the same
step (`placer.runtime.control.common_step`), and they save. If the run has failed or no step
has started, the first signal ends the run immediately and nothing is saved. The time to
stop is limited; the time to save is not. A second signal ends the run immediately.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from placer.channel.cause import INTERRUPTED
from placer.errors import PlacerError
from placer.plan.plan import Plan
from placer.runtime.control.checkpoint_settings import checkpoint_settings
from placer.runtime.control.events import (
    AFTER_LAST_BARRIER,
    BEFORE_FIRST_STEP,
    SAVING,
    STILL_WRITING,
    WAITING_IN_STREAM,
    CheckpointSaved,
    Event,
    NodeWarning,
    PublicationWritten,
    Report,
    Resumed,
    Step,
)
from placer.runtime.control.options import Options
from placer.runtime.control.publish_settings import publish_settings

NOTHING_KEPT: Final = (
    "nothing was saved; add 'checkpoint' (--checkpoint DIR) to be able to continue an"
    " interrupted run"
)
TOO_EARLY: Final = "the first step had not finished"
NOT_WRITTEN: Final = "the file was not completely written"
RECOVERING: Final = "all nodes were going back after a failure"
STOPS_WAITING: Final = (
    "interrupted: all nodes stop waiting; another signal ends them immediately"
)
NOTHING_PREDICTED: Final = "the predictions were not written"
"""The message for a prediction that a signal has ended."""


class Decision(Enum):
    """The reaction to the signals so far."""

    CONTINUE = auto()
    STOP = auto()  # stop all nodes after the same step; decided only once
    END = auto()  # end immediately, without saving


@dataclass(slots=True)
class Interruption:
    """Decides how a run reacts to SIGINT, SIGTERM and SIGHUP.

    Attributes:
        params_file: the file to which the run saves its parameters, if any.
        checkpoints: the folder to which the run saves checkpoints, if any.
        grace: seconds that the nodes have to stop after the same step.
        deadline: seconds that the nodes have to save.
        nothing_kept: the message for an interrupted run that saves nothing.
        last_checkpoint: the path of the last complete checkpoint of the run.
        resumed: the path of the checkpoint from which the run continues.
        has_steps: whether a step of the run has ended. The state of the control node may
            still be older.
        stopping_since: the time of the first signal, if the run can still save.
        command: the command of the run without its folders of checkpoints; empty if
            unknown.
        names_folder: whether the command to continue names the folder of checkpoints, and not
            one of them: that of a stream is given again and again, such as from cron.
        resume: the path that `--resume` names.
        publishes: whether the run publishes for serving.
        last_publication: the path of the last publication of the run.
        why: the reason why nothing was saved.
    """

    params_file: Path | None = None
    checkpoints: Path | None = None
    grace: float = 30.0
    deadline: float = 600.0
    nothing_kept: str = NOTHING_KEPT
    last_checkpoint: str = ""
    resumed: str = ""
    has_steps: bool = False
    stopping_since: float | None = None
    command: str = ""
    names_folder: bool = False
    resume: Path | None = None
    publishes: bool = False
    last_publication: str = ""
    why: str = TOO_EARLY

    @property
    def saves(self) -> bool:
        """Whether the run saves parameters or checkpoints, or publishes."""
        kept = self.params_file, self.checkpoints
        return self.publishes or any(each is not None for each in kept)

    def _stopping(self, state: str) -> str:
        """Return the warning when a signal stops a run that can still save."""
        if state in WAITING_IN_STREAM:
            return STOPS_WAITING
        return (
            "interrupted: all nodes stop after the same step, within"
            f" {self.grace:g} s, and save, within {self.deadline:g} s; another signal"
            " ends them immediately"
        )

    @property
    def cause(self) -> str:
        """The cause for the other nodes if this node has decided to end the run."""
        why = f": {self.why}" if self.saves else ""
        return f"{INTERRUPTED}{why}"

    @property
    def how_to_continue(self) -> str:
        """A hint how to continue a failed run: the command, or only its options.

        If there is no checkpoint, the hint explains how to save some. It is empty if the run
        saves no checkpoints or no step has ended.
        """
        if self._next_command:
            return self._next_command
        if self.checkpoints is not None and self.has_steps:
            return (
                f"this run saved no checkpoint in {self.checkpoints}; save one every N"
                " steps with 'checkpoint_every' (--checkpoint-every N)"
            )
        return ""

    @property
    def _next_command(self) -> str:
        """The command that continues from the last checkpoint of the run, or from the one from
        which it has continued; empty without one."""
        if self.last_checkpoint:
            last = Path(self.last_checkpoint)
            folder, is_newest = last.parent, True
        elif self.resumed and self.checkpoints is not None:
            last, folder = Path(self.resumed), self.checkpoints
            is_newest = self.resume is not None and self.resume.resolve() == folder
        else:
            return ""
        if self.names_folder and is_newest:
            last = folder
        options = shlex.join(["--checkpoint", str(folder), "--resume", str(last)])
        return " ".join(filter(None, ("continue with", self.command, options)))

    def explain(self, error: PlacerError) -> None:
        """Add to the hint of a failed run's error how to continue the run."""
        parts = filter(None, (error.hint, self.how_to_continue))
        error.hint = "; ".join(parts) or None

    def note(self, event: Event) -> None:
        """Note an event of the control node."""
        if isinstance(event, CheckpointSaved):
            self.last_checkpoint = event.path
        elif isinstance(event, PublicationWritten):
            self.last_publication = event.path
        elif isinstance(event, Resumed):
            self.resumed = event.path
        elif isinstance(event, Step):
            self.has_steps = True

    def decide(
        self, signals: int, state: str, *, can_save: bool = True, recovers: bool = False
    ) -> Decision:
        """Decide how to react now.

        Args:
            signals: the number of signals so far.
            state: the state of the control node.
            can_save: whether the run is still in progress and has not failed.
            recovers: whether the nodes go back after a failure. A stop that was ordered
                before has its time afterwards.
        """
        if not signals:
            return Decision.CONTINUE
        if recovers:
            if self.stopping_since is None or signals > 1:
                return self._end(RECOVERING)
            self.stopping_since = time.monotonic()
            return Decision.CONTINUE
        is_early = state in BEFORE_FIRST_STEP and not self.has_steps
        if self.stopping_since is None and is_early:
            return self._end(TOO_EARLY)
        self.why = NOT_WRITTEN
        if signals > 1:
            return self._end("a second signal arrived")
        is_saving = state in (SAVING, *AFTER_LAST_BARRIER)
        if self.stopping_since is None:
            if not self.saves or not can_save:
                return Decision.END
            self.stopping_since = time.monotonic()
            return Decision.CONTINUE if is_saving else Decision.STOP
        if state == STILL_WRITING:  # the grace period begins after this write
            self.stopping_since = time.monotonic()
        if is_saving or time.monotonic() - self.stopping_since <= self.grace:
            return Decision.CONTINUE
        return self._end(f"the nodes did not stop within {self.grace:g} s")

    def obey(
        self,
        signals: int,
        state: str,
        report: Report,
        *,
        stop: Callable[[], object],
        end: Callable[[], object],
        can_save: bool = True,
        recovers: bool = False,
    ) -> None:
        """React to the signals so far.

        Args:
            signals: the number of signals so far.
            state: the state of the control node.
            report: called with the warning that the run stops.
            stop: asks all nodes to stop after the same step.
            end: ends the run immediately.
            can_save, recovers: as in `decide`.
        """
        match self.decide(signals, state, can_save=can_save, recovers=recovers):
            case Decision.STOP:
                stop()
                report(NodeWarning(self._stopping(state)))
            case Decision.END:
                end()

    def _end(self, why: str) -> Decision:
        self.why = why
        return Decision.END

    def outcome(self, steps: int | None, failure: str | None = None) -> str:
        """Return the message for an interrupted run: what was saved, or why nothing was.

        Args:
            steps: the number of steps in the result, or of rows of a prediction; None
                without a result.
            failure: the failure of the run, if it has failed.
        """
        if steps is None:
            before = f"; {self._next_command}" if self._next_command else ""
            if failure is not None:
                return f"the run had failed: {failure}{before}"
            if not self.saves:
                return self.nothing_kept
            return f"nothing was saved: {self.why}{before}"
        if not self.saves:
            return ""
        saved = []
        if self.params_file is not None:
            saved.append(f"the parameters are in {self.params_file}")
        if self.last_publication:
            saved.append(f"the last publication is {self.last_publication}")
        if (
            self._next_command
        ):  # a stream that waited for rows may have saved nothing new
            saved.append(self._next_command)
        return "; ".join([f"stopped after step {steps}", *saved])


def interruption_of(plan: Plan, build: Path, options: Options) -> Interruption:
    """Return the `Interruption` for a run of a build with these options."""
    settings = checkpoint_settings(plan, build, options)
    folder = settings.folder if settings is not None else None
    return Interruption(
        options.save_params,
        folder,
        options.grace,
        options.deadline,
        names_folder=plan.train.stream is not None,
        resume=options.resume,
        publishes=publish_settings(plan, build, options) is not None,
    )
