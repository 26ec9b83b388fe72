"""Follows the starts of a job, which Slurm may start again with `--restarts`.

When nodes end, it is not clear at first whether the job starts again: after the loss of a task,
the batch script asks Slurm for it, and after a preemption or the loss of a machine, Slurm does
it itself. Until then, events that would end the run are held back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from placer.channel.cause import Cause
from placer.errors import RunError
from placer.launcher.engines.attempts import last_attempt_of, lost_line
from placer.launcher.engines.engine import (
    JobEvent,
    JobFolder,
    JobNote,
    NodeEnded,
    NodeLines,
)
from placer.launcher.engines.said import end_of_file, lines_of
from placer.launcher.engines.slurm.asking import asking
from placer.launcher.engines.slurm.following import Following
from placer.launcher.engines.slurm.job import ENDED, WAITING, SlurmJob
from placer.launcher.engines.slurm.job_files import find_later_start, list_folder
from placer.launcher.engines.slurm.notes import Notes
from placer.launcher.engines.slurm.scripts import REQUEUED
from placer.launcher.guard import FINAL_STATUSES
from placer.runtime.control.events import (
    FAILED_LINE,
    RESULT_LINE,
    SIGNAL_LINE,
    STATE_LINE,
)
from placer.runtime.signals.signals import END_SIGNALS, how_ended

_ENDING: Final = (SIGNAL_LINE, FAILED_LINE)
"""The lines with which a node ends, because it has failed or received a signal."""
_UNDONE: Final = (*_ENDING, STATE_LINE, RESULT_LINE)
"""The lines after the first end that no longer hold if the job starts again."""


def watch(job: SlurmJob) -> Iterator[JobEvent]:
    """Follow a job by its files and the answers of Slurm; see `Engine.watch`."""
    with asking(job) as slurm:
        notes = Notes(slurm)
        start = _Start(Following(job, slurm, notes))
        yield from start.follow()
        while (later := start.later) is not None:
            yield JobNote(f"Slurm starts job {job.number} again ({later.start})")
            yield JobFolder(later.folder)
            start = _Start(Following(later, slurm, notes), start.attempt)
            yield from start.follow()


@dataclass(slots=True)
class _Start:
    """A start of a job.

    Attributes:
        following: follows the nodes of the start.
        attempt: the last attempt that the nodes have reported, in all starts.
        later: the job at its next start.
    """

    following: Following
    attempt: int = 1
    later: SlurmJob | None = None
    _is_final: bool = field(init=False)  # the job does not start again
    _is_lost: bool = False  # Slurm starts the job again
    _held: list[JobEvent] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _has_run: bool = False
    _is_heard: bool = False
    _is_explained: bool = False

    def __post_init__(self) -> None:
        self._is_final = not self.following.job.restarts

    def follow(self) -> Iterator[JobEvent]:
        """Yield the events of the start, until `later` is known or the job is over."""
        while not (self._is_final and self.following.is_over):
            yield from self._look()
            if not self._is_final:
                yield from self._decide()
            if self.later is not None:
                return
            time.sleep(self.following.pause)
        yield from self.following.lose()
        yield from self._held  # the ends of nodes of a job that should have started again

    def _look(self) -> Iterator[JobEvent]:
        for event in self.following.look():
            if isinstance(event, JobNote):
                self._is_explained |= event.warns
                yield event
                continue
            if isinstance(event, NodeLines):
                self._note(event)
            if self._held or not (self._is_final or _passes(event)):
                self._held.append(event)
            else:
                yield event

    def _note(self, event: NodeLines) -> None:
        self._is_heard = True
        self.attempt = last_attempt_of(event.node, event.lines, self.attempt)

    def _decide(self) -> Iterator[JobEvent]:
        """Release the events that were held back, once it is clear how the job goes on."""
        self.later = find_later_start(self.following.job)
        if self.later is None and self._has_ended:
            self._is_final = True
            if self._is_lost:
                # Slurm may have started only a part of the job again, which then waits.
                with suppress(RunError):
                    self.following.job.cancel()
            else:
                yield from self._held
                self._held = []
        elif not self._is_lost and (self.later is not None or self._starts_again):
            yield from self._look()  # Read all that the nodes have written.
            while self.following.is_held_back:
                time.sleep(self.following.pause)
                yield from self._look()
            yield from self._lose()
        elif self._is_lost:
            yield from self._keep_ends()

    @property
    def _has_ended(self) -> bool:
        if self._is_lost:
            return self.following.is_written
        # The batch script of a job with such an end does not ask for another start.
        control = self.following.job.nodes[0]
        return self.following.over is not None or any(
            end.status in FINAL_STATUSES or (end.node == control and end.status == 0)
            for end in self._ends
        )

    @property
    def _starts_again(self) -> bool:
        """Whether the batch script asks Slurm to start the job again, or Slurm does."""
        slurm, job = self.following.slurm, self.following.job
        state = ""
        if slurm.answer is not None and slurm.asked > self._began:
            state = slurm.answer.state
        self._has_run |= state not in ("", *WAITING, *ENDED)
        is_asked = bool(self._held) and REQUEUED in list_folder(job)
        return is_asked or (self._has_run and state in WAITING)

    @property
    def _ends(self) -> list[NodeEnded]:
        return [each for each in self._held if isinstance(each, NodeEnded)]

    def _lose(self) -> Iterator[JobEvent]:
        """Yield what the nodes have done before they were lost, and the loss of all nodes."""
        self._is_lost = True
        yield from self._keep_ends()
        if not self._is_heard:
            return
        *others, control = reversed(self.following.job.nodes)
        causes = self._causes()
        # The next process of the control node may count its attempts from a lower number.
        for node in (*others, control):
            cause = causes.get(node) or next(iter(causes.values()))
            yield NodeLines(node, [lost_line(node, self.attempt, cause)])

    def _keep_ends(self) -> Iterator[JobEvent]:
        """Yield the held events that still hold if the job starts again, except the ends of
        the nodes, which stay held."""
        for event in self._held:
            if isinstance(event, NodeLines):
                lines = [each for each in event.lines if not each.startswith(_UNDONE)]
                if lines:
                    yield NodeLines(event.node, lines)
        self._held = [*self._ends]

    def _causes(self) -> dict[str, Cause]:
        """Return the cause of the loss of each node whose task was killed. The other tasks were
        ended for this reason. If none is known, return the loss of the job for the node ""."""
        job = self.following.job
        ends = {end.node: end.status for end in self._ends}
        asked = (0, *(-each for each in END_SIGNALS))
        killed = [node for node in ends if ends[node] not in asked]
        # srun may kill other tasks as well; they do not record how they ended.
        killed = killed or [node for node in job.nodes if node not in ends]
        if 0 < len(killed) < len(job.nodes):
            return {node: Cause(node, "", _how_lost(ends.get(node))) for node in killed}
        what = f"Slurm has ended job {job.number}, and starts it again"
        said = [] if self._is_explained else lines_of(end_of_file(job.log))
        return {"": Cause("", "", "\n    ".join([what, *said]))}


def _passes(event: JobEvent) -> bool:
    """Whether an event tells nothing of an end."""
    if isinstance(event, NodeLines):
        return not _has_line(event.lines, _ENDING)
    return not isinstance(event, NodeEnded)


def _has_line(lines: Sequence[bytes], starts: tuple[bytes, ...]) -> bool:
    return any(line.startswith(starts) for line in lines)


def _how_lost(status: int | None) -> str:
    return "lost its task" if status is None else how_ended(status)
