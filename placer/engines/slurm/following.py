"""Follows a job of Slurm by the files that its nodes write, and by what Slurm says."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from placer.engines.causes import is_cause_of_failure, tells_failure
from placer.engines.engine import JobEvent, JobNote, NodeEnded, NodeLines
from placer.engines.slurm.asking import Asking, asking
from placer.engines.slurm.ends import first_error, why_ended, words_of
from placer.engines.slurm.job import ENDED, SlurmJob
from placer.engines.slurm.job_files import (
    file_of,
    list_folder,
    read_end,
    read_log,
    why_unwritten,
)
from placer.engines.slurm.notes import Notes
from placer.engines.tail import Tail
from placer.errors import RunError
from placer.runtime.run.events import SIGNAL_LINE

POLL: Final = 0.25
"""Seconds between two looks at the files of a job."""
FILES: Final = 50
"""Nodes of a job up to which this is enough; their files are on a shared file system."""
END_GRACE: Final = 10.0
"""Seconds in which files appear that a job has written, on a shared file system."""
UNKNOWN: Final = 60.0
"""Seconds without a word of the nodes after which a job has ended that Slurm does not
know."""
EXPLAINED: Final = 1.5
"""Seconds after a signal in which Slurm says why."""
ENDED_FILE: Final = "ended"
"""What the batch script writes at its end."""


def watch(job: SlurmJob) -> Iterator[JobEvent]:
    """Follow a job by its files, and by what Slurm says; see `Engine.watch`."""
    with asking(job) as slurm:
        following = _Following(job, slurm)
        while not following.is_over:
            yield from following.look()
            time.sleep(following.pause)
        yield from following.lose()


@dataclass(slots=True)
class _Following:
    """What is known of a job.

    Attributes:
        left: the nodes whose end is not known.
        over: when it was seen that the job has ended.
    """

    job: SlurmJob
    slurm: Asking
    left: list[str] = field(init=False)
    over: float | None = None
    _tails: dict[str, Tail] = field(init=False)
    _has_failed: bool = False
    _heard: float = field(default_factory=time.monotonic)  # the last line of a node
    _known: float = field(default_factory=time.monotonic)  # to Slurm
    _held: list[JobEvent] = field(default_factory=list)
    _signalled: float | None = None
    _is_explained: bool = False
    _notes: Notes = field(init=False)

    def __post_init__(self) -> None:
        self.left = [*self.job.nodes]
        self._notes = Notes(self.slurm)
        self._tails = {
            name: Tail(file_of(self.job, name, "jsonl")) for name in self.left
        }

    @property
    def is_over(self) -> bool:
        """Whether all has come that will come."""
        if self._held:
            return False
        ended = self.over is not None and time.monotonic() - self.over >= END_GRACE
        return ended or not self.left

    @property
    def pause(self) -> float:
        """Seconds until the next look: of hundreds of nodes there are as many files."""
        return max(POLL, POLL * len(self.left) / FILES)

    def look(self) -> Iterator[JobEvent]:
        """Yield what has come since the last look."""
        if self.over is None:
            yield from self._notes.new(self._heard)
            self._note_end()
        events = [*self._held, *self._read()]
        self._held = []
        if self._is_explained or not _find_signals(events):
            # srun ends the other nodes when one has failed.
            self._is_explained |= self._has_failed
            yield from events
            return
        # What is told now is read before the signal, which ends the run.
        yield from self._explain(events)
        self._held = events

    def lose(self) -> Iterator[JobEvent]:
        """Yield that the nodes are lost whose end has not come. Raises RunError if it is
        that of none, and so of the whole job."""
        if not self.left:
            return
        why = f"{self.job.title} {self._why_lost()}"
        if len(self.left) == len(self.job.nodes):
            raise RunError(why)
        for name in self.left:
            yield NodeEnded(name, None, why)

    def _read(self) -> list[JobEvent]:
        """Return what the files of the nodes say."""
        # Slurm ends all nodes after the first that was killed: its end is there when the
        # signals to the others are read.
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
            """A failure comes before the signals that follow it."""
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
        """Yield the end of a node, with what the user should know of it."""
        path = file_of(self.job, end.node, "jsonl")
        if end.status == 0 and self._tails[end.node].is_within_line:
            why = why_unwritten(self.job) or "is your quota used up?"
            yield JobNote(f"{path} ends within a line: {why}", warns=True)
        yield end

    def _explain(self, events: list[JobEvent]) -> Iterator[JobNote]:
        """Yield why Slurm has sent signals, once it says so, and add it to the ends of
        nodes that were killed."""
        now = time.monotonic()
        if self._signalled is None:
            self._signalled = now
        self.slurm.ask_now()
        is_late = now - self._signalled > EXPLAINED
        why = self._why_signalled(events, is_late)
        self._is_explained = bool(why) or is_late
        if not why:
            return
        yield JobNote(f"{self.job.title} {why}", warns=True)
        for i, event in enumerate(events):
            if isinstance(event, NodeEnded) and (event.status or 0) < 0:
                events[i] = replace(event, why=f"{self.job.title} {why}")

    def _why_signalled(self, events: Sequence[JobEvent], is_late: bool) -> str:
        """Return why Slurm has sent signals; empty if that is not known (yet)."""
        assert self._signalled is not None
        is_new = self.slurm.asked > self._signalled
        answer = self.slurm.answer if is_new else None
        why = why_ended(read_log(self.job.log), answer)
        if why or answer is None or not is_late or not _are_terminated(events):
            return why
        if answer.state == "RUNNING":
            return answer.left_in_words
        return f"ends; its log may say why: {self.job.log}"

    def _note_end(self) -> None:
        """Note when Slurm says that the job has ended, or knows it no more: where squeue
        is asked by many, it may be a script that tells what was true a while ago."""
        answer, now = self.slurm.answer, time.monotonic()
        if answer is None or answer.state:
            self._known = now
        elif self.slurm.answered - max(self._known, self._heard) > UNKNOWN:
            self.over = now
        if answer is not None and answer.state in ENDED:
            self.over = now
            has_begun = answer.state == "COMPLETED" or list_folder(self.job)
            if not has_begun:  # it has written nothing
                self.over -= END_GRACE

    def _why_lost(self) -> str:
        """Return why nothing more has come of a job that is over."""
        log, folder, answer = read_log(self.job.log), self.job.folder, self.slurm.answer
        if why := why_ended(log, answer):
            return why
        why = words_of("COMPLETED" if answer is None else answer.state)
        if not folder.exists():
            return f"{why}, and its folder is not there any more: '{folder}'"
        if error := first_error(log):
            return f"{why}: {error[:400]}\n  log: {self.job.log}"
        if unwritten := why_unwritten(self.job):
            return f"{why}: {unwritten}"
        return f"{why}, and its nodes have not told how they ended\n  logs: {folder}"


def _find_signals(events: Sequence[JobEvent]) -> bool:
    """Whether nodes were sent signals."""
    ends = (each.status or 0 for each in events if isinstance(each, NodeEnded))
    return _is_reported(events) or any(status < 0 for status in ends)


def _is_reported(events: Sequence[JobEvent]) -> bool:
    """Whether nodes say that they have received signals."""
    return any(
        line.startswith(SIGNAL_LINE)
        for each in events
        if isinstance(each, NodeLines)
        for line in each.lines
    )


def _are_terminated(events: Sequence[JobEvent]) -> bool:
    """Whether nodes have ended by a request alone, and none was killed."""
    ends = [each.status for each in events if isinstance(each, NodeEnded)]
    return _is_reported(events) and all(end == -signal.SIGTERM for end in ends)


def _wait_for_script(job: SlurmJob) -> None:
    """Wait until the batch script needs the folder of a job no more, which the launcher
    may remove after a successful run."""
    until = time.monotonic() + END_GRACE
    while ENDED_FILE not in list_folder(job) and time.monotonic() < until:
        time.sleep(POLL)
