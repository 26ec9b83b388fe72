"""Follows a start of a Slurm job by the files of its nodes and the answers of Slurm."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from placer.errors import RunError
from placer.launcher.engines.causes import is_cause_of_failure, tells_failure
from placer.launcher.engines.engine import JobEvent, JobNote, NodeEnded, NodeLines
from placer.launcher.engines.hints import hint_of
from placer.launcher.engines.said import end_of_file, quoting
from placer.launcher.engines.slurm.asking import Asking
from placer.launcher.engines.slurm.job import ENDED, SlurmJob
from placer.launcher.engines.slurm.job_files import (
    file_of,
    list_folder,
    read_end,
    why_unwritten,
)
from placer.launcher.engines.slurm.notes import Notes
from placer.launcher.engines.tail import Tail
from placer.runtime.control.events import SIGNAL_LINE

POLL: Final = 0.25
"""Seconds between two looks at the files of a job."""
FILES: Final = 50
"""The number of nodes above which the looks become less frequent. The files are on a
shared file system."""
END_GRACE: Final = 10.0
"""Seconds after the end of a job in which its files must appear on a shared file system."""
UNKNOWN: Final = 60.0
"""Seconds without news from the nodes after which a job that Slurm does not know has
ended."""
EXPLAINED: Final = 1.5
"""Seconds after a signal in which Slurm gives the reason."""
ENDED_FILE: Final = "ended"
"""The file that the batch script writes at its end."""


@dataclass(slots=True)
class Following:
    """The state of a followed job, from one of its starts to the next.

    Attributes:
        notes: makes messages from the answers of Slurm.
        left: the nodes whose end is not known.
        over: the time when the end of the job was noticed; None before.
    """

    job: SlurmJob
    slurm: Asking
    notes: Notes
    left: list[str] = field(init=False)
    over: float | None = None
    _tails: dict[str, Tail] = field(init=False)
    _has_failed: bool = False
    # The time of the last line of a node.
    _heard: float = field(default_factory=time.monotonic)
    _known: float = field(default_factory=time.monotonic)  # to Slurm
    _held: list[JobEvent] = field(default_factory=list)
    _signalled: float | None = None
    _is_explained: bool = False

    def __post_init__(self) -> None:
        self.left = [*self.job.nodes]
        self._tails = {
            name: Tail(file_of(self.job, name, "jsonl")) for name in self.left
        }

    @property
    def is_over(self) -> bool:
        """True if no more events can come."""
        return not self._held and (self.is_written or not self.left)

    @property
    def is_held_back(self) -> bool:
        """True if events wait for Slurm's reason for a signal, for at most `EXPLAINED`."""
        return bool(self._held)

    @property
    def is_written(self) -> bool:
        """True if the job is over and all that it has written must be visible."""
        return self.over is not None and time.monotonic() - self.over >= END_GRACE

    @property
    def pause(self) -> float:
        """Seconds until the next look, more for jobs with many nodes, and so many files."""
        return max(POLL, POLL * len(self.left) / FILES)

    def look(self) -> Iterator[JobEvent]:
        if self.over is None:
            yield from self.notes.new(self._heard)
            self._note_end()
        events = [*self._held, *self._read()]
        self._held = []
        if self._is_explained or not _find_signals(events):
            # After a failure, srun ends the other nodes, which needs no explanation.
            self._is_explained |= self._has_failed
            yield from events
            return
        # The explanation must be read before the signal, which ends the run.
        yield from self._explain(events)
        self._held = events

    def lose(self) -> Iterator[JobEvent]:
        """Yield the loss of nodes with unknown end. Raises RunError if all are lost."""
        if not self.left:
            return
        why = self._why_lost()
        if len(self.left) == len(self.job.nodes):
            log = f"\n  log: {self.job.log}" if self.job.log.exists() else ""
            raise RunError(f"{why}{log}")
        for name in self.left:
            yield NodeEnded(name, None, " ".join(why.split()))

    def _read(self) -> list[JobEvent]:
        # After a node was killed, Slurm ends all others. Listed first, so that the end of
        # the killed node is read before the signals to the others.
        there = list_folder(self.job)
        lines = {
            name: self._tails[name].read()
            for name in self.left
            if file_of(self.job, name, "jsonl").name in there
        }
        there |= list_folder(self.job)
        ended = {
            name: end
            for name in self.left
            if file_of(self.job, name, "ended").name in there
            and (end := read_end(self.job, name))
        }
        self._has_failed |= any(end.status != 0 for end in ended.values())
        if len(ended) == len(self.left) and not self._has_failed:
            _wait_for_script(self.job)
        for name in ended:
            lines[name] = lines.get(name, []) + self._tails[name].read()
        if any(lines.values()):
            self._heard = time.monotonic()

        def rank(name: str) -> tuple[bool, bool]:
            """Sort a failure before the signals that follow it."""
            is_cause = name in ended and is_cause_of_failure(ended[name])
            has_failed = is_cause or any(map(tells_failure, lines.get(name, [])))
            return not has_failed, name not in ended

        events: list[JobEvent] = []
        for name in sorted(self.left, key=rank):
            if found := lines.get(name):
                events.append(NodeLines(name, found))
            if name in ended:
                events += self._end(ended[name])
        self.left = [name for name in self.left if name not in ended]
        if self.over is None and ENDED_FILE in there:
            self.over = time.monotonic()
        return events

    def _end(self, end: NodeEnded) -> Iterator[JobEvent]:
        """Yield the end of a node, with a warning if its events are incomplete."""
        path = file_of(self.job, end.node, "jsonl")
        if end.status == 0 and self._tails[end.node].is_within_line:
            why = why_unwritten(self.job) or "is your quota used up?"
            yield JobNote(f"{path} ends within a line: {why}", warns=True)
        yield end

    def _explain(self, events: list[JobEvent]) -> Iterator[JobNote]:
        """Yield Slurm's reason for a signal, or add it to the ends of killed nodes."""
        now = time.monotonic()
        if self._signalled is None:
            self._signalled = now
        self.slurm.ask_now()
        answer = self.slurm.answer if self.slurm.asked > self._signalled else None
        is_ending = answer is not None and answer.is_ended_by_slurm
        self._is_explained = is_ending or now - self._signalled > EXPLAINED
        # After a failure, srun ends the other nodes. After a kill, other nodes may fail.
        has_failed = any(map(_fails, events)) and not any(map(_is_killed, events))
        if not self._is_explained or (not is_ending and has_failed):
            return
        said = self._said("is ending" if answer is None else answer.words)
        is_told = False
        for i, event in enumerate(events):
            if isinstance(event, NodeEnded) and _is_killed(event):
                events[i] = replace(event, why=" ".join(said.split()))
                is_told = True
        if not is_told:
            yield JobNote(said, warns=True)

    def _said(self, state: str) -> str:
        log = end_of_file(self.job.log)
        said = quoting(f"{self.job.title} {state}", log)
        hint = hint_of("Slurm", f"{state}\n{log}")
        return f"{said}\n  hint: {hint}" if hint else said

    def _note_end(self) -> None:
        """Record when Slurm reports the end of the job; squeue may be cached and out of
        date."""
        answer, now = self.slurm.answer, time.monotonic()
        if answer is None or answer.state:
            self._known = now
        elif self.slurm.answered - max(self._known, self._heard) > UNKNOWN:
            self.over = now
        if answer is not None and answer.state in ENDED:
            self.over = now
            has_begun = answer.state == "COMPLETED" or list_folder(self.job)
            if not has_begun:  # The job has written nothing yet.
                self.over -= END_GRACE

    def _why_lost(self) -> str:
        """Return the reason why an ended job writes no more output."""
        answer, folder = self.slurm.answer, self.job.folder
        state = "has ended"
        if answer is not None and answer.state in ("", *ENDED):
            # This answer may be out of date.
            state = answer.words
        if answer is None or not answer.is_ended_by_slurm:
            if not folder.exists():
                state += f", and its folder no longer exists: '{folder}'"
            elif unwritten := why_unwritten(self.job):
                state += f": {unwritten}"
            else:
                state += (
                    f", and its nodes have not recorded how they ended in '{folder}'"
                )
        return self._said(state)


def _find_signals(events: Sequence[JobEvent]) -> bool:
    return any(
        any(line.startswith(SIGNAL_LINE) for line in event.lines)
        if isinstance(event, NodeLines)
        else isinstance(event, NodeEnded) and (event.status or 0) < 0
        for event in events
    )


def _fails(event: JobEvent) -> bool:
    if isinstance(event, NodeLines):
        return any(map(tells_failure, event.lines))
    return isinstance(event, NodeEnded) and (event.status or 0) > 0


def _is_killed(event: JobEvent) -> bool:
    return isinstance(event, NodeEnded) and is_cause_of_failure(event)


def _wait_for_script(job: SlurmJob) -> None:
    """Wait until the batch script no longer needs the folder of the job."""
    until = time.monotonic() + END_GRACE
    while ENDED_FILE not in list_folder(job) and time.monotonic() < until:
        time.sleep(POLL)
