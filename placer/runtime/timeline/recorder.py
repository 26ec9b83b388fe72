"""Records the activities of one node's threads in a bounded amount of memory.

A *slice* is an activity of one thread from one time to another, such as a call or a part of
a call. Slices of a thread nest. A slice is recorded when it ends. Times are nanoseconds of
the monotonic clock.
"""

from __future__ import annotations

import threading
import time
from array import array
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from placer.channel.interface import Key

now = time.monotonic_ns
COLUMNS: Final = 11
"""The number of integers per slice: the track, the name, the start, the end, the kind, the
name of the peer, and the edge, step, microbatch, bytes and values of the message."""
PLAIN, SENT, RECEIVED, WAITED, WOKEN = range(5)
"""The kinds of slices: a call, a sent or received message, a wait for peers, and a wait that
another thread of this node ended. For WOKEN, the columns of the edge and the step contain the
track of the other thread and the time when it ended the wait."""
MERGED: Final = 100_000
"""The longest time in nanoseconds between two waits that are recorded as one slice."""
STEP, COMPUTE, WAIT, SEND, RECEIVE, UPDATE, ROWS, COPY, READ, RECORD = (
    "step",
    "compute",
    "wait",
    "send",
    "receive",
    "update",
    "rows",
    "copy",
    "read",
    "record",
)
"""The categories of slices."""
_NO_MESSAGE: Final = (PLAIN, 0, 0, 0, 0, 0, 0)
PROGRAM: Final = "program"
"""The name of the track of the thread that runs the hooks `step` and `evaluate`."""


class Message(NamedTuple):
    """A message that a slice sends, receives or waits for.

    Attributes:
        kind: the kind of the slice.
        peer: the other node; the nodes of a wait, with spaces between them.
        key: the address of the message.
        nbytes: the size; 0 if it is unknown.
        values: the names of the values, with spaces between them.
    """

    kind: int
    peer: str
    key: Key
    nbytes: int = 0
    values: str = ""


@dataclass(slots=True)
class _Track:
    """The slices of one thread. Threads that run at the same time may share a name."""

    number: int
    name: str
    thread: threading.Thread
    numbers: array[int] = field(default_factory=lambda: array("q"))
    last_wait: tuple[object, int] | None = None
    """The source of the last wait for another thread, and the length of `numbers` after it."""


class Recorder:
    """Records the slices of one node.

    The thread that runs the hooks of the program must create it.

    Args:
        limit: the largest number of slices to keep. Further slices are only counted.

    Attributes:
        active: whether slices are currently recorded.
        step: the number of the current step.
        left_out: the number of slices that did not fit.
        full_in: the step of the first slice that did not fit; 0 if all slices fit.
    """

    def __init__(self, limit: int) -> None:
        self.active = False
        self.step = 0
        self.left_out = self.full_in = 0
        self._limit = limit
        self._counter = count()
        # The lock guards new names and tracks. Only its own thread changes a track.
        self._lock = threading.Lock()
        self._names: dict[tuple[str, str], int] = {}
        self._tracks = [_Track(0, PROGRAM, threading.current_thread())]
        self._local = threading.local()
        self._local.track = self._tracks[0]

    def add(
        self,
        category: str,
        name: str,
        start: int,
        end: int | None = None,
        message: Message | None = None,
    ) -> None:
        """Record a slice of this thread, if the recorder is active.

        Args:
            category: the category.
            name: the name.
            start: the start.
            end: the end; None if the slice ends now.
            message: the message that the slice sends, receives or waits for.
        """
        if not self.active:
            return
        if next(self._counter) >= self._limit:
            self._leave_out()
            return
        self._append(category, name, start, end, message)

    def _append(
        self,
        category: str,
        name: str,
        start: int,
        end: int | None,
        message: Message | None,
    ) -> None:
        track = self._track()
        named = self._name(category, name)
        details: tuple[int, ...] = _NO_MESSAGE
        if message is not None:
            kind, peer, key, nbytes, values = message
            texts = self._name("", peer), self._name("", values)
            details = (kind, texts[0], *key[:3], nbytes, texts[1])
        # The end comes last, so that the slice contains the time for recording it.
        track.numbers.extend(
            (track.number, named, start, now() if end is None else end, *details)
        )

    def slice(
        self, category: str, name: str, message: Message | None = None
    ) -> AbstractContextManager[None]:
        """Return a context manager that records its duration as a slice, even if it raises."""
        return _Slice(self, category, name, message)

    def add_thread_wait(
        self,
        source: object,
        node: str,
        start: int,
        end: int,
        woken: tuple[int, int] | None,
    ) -> None:
        """Record a wait of this thread for another thread of the node.

        A thread that wakes too early waits again. The two waits become one slice if they
        have the same source and nothing is recorded between them.

        Args:
            source: identifies the waits of one kind.
            node: the name of the node.
            start, end: the time of the wait.
            woken: the track of the thread that ended the wait, and the time; None if they
                are unknown.
        """
        if not self.active:
            return
        track = self._track()
        numbers = track.numbers
        name, message = "another thread", Message(WAITED, node, Key(0, 0))
        if woken is not None:
            name = self._tracks[woken[0]].name
            message = Message(WOKEN, node, Key(*woken))
        label = f"wait for {name}"
        if (
            track.last_wait == (source, len(numbers))
            and start - numbers[3 - COLUMNS] <= MERGED
        ):
            start = numbers[2 - COLUMNS]
            del numbers[-COLUMNS:]
            self._append(WAIT, label, start, end, message)
        else:
            before = len(numbers)
            self.add(WAIT, label, start, end, message)
            if len(numbers) == before:  # left out
                return
        track.last_wait = source, len(numbers)

    @property
    def own_track(self) -> int | None:
        """The number of this thread's track; None if it has recorded nothing."""
        track: _Track | None = getattr(self._local, "track", None)
        return None if track is None else track.number

    @property
    def is_program(self) -> bool:
        """Whether this thread runs the hooks `step` and `evaluate`."""
        return getattr(self._local, "track", None) is self._tracks[0]

    @property
    def names(self) -> list[tuple[str, str]]:
        """The category and the text of each name, in the order of their numbers."""
        return list(self._names)

    @property
    def tracks(self) -> list[str]:
        """The name of each track, in the order of their numbers."""
        return [track.name for track in self._tracks]

    def numbers(self) -> array[int]:
        """Return the integers of all slices, `COLUMNS` for each.

        The slices are sorted by track, and within a track by their ends.
        """
        with self._lock:
            joined = array("q")
            for track in self._tracks:
                joined.extend(track.numbers)
            return joined

    def _name(self, category: str, name: str) -> int:
        number = self._names.get((category, name))
        if number is None:
            with self._lock:
                number = self._names.setdefault((category, name), len(self._names))
        return number

    def _leave_out(self) -> None:
        with self._lock:
            self.left_out += 1
            self.full_in = self.full_in or self.step

    def _track(self) -> _Track:
        """Return the track of this thread. It reuses the track of an ended namesake."""
        try:
            track: _Track = self._local.track
        except AttributeError:
            with self._lock:
                track = self._local.track = self._new_track()
        return track

    def _new_track(self) -> _Track:
        thread = threading.current_thread()
        name = thread.name.removeprefix("placer ")
        for track in self._tracks:
            if track.name == name and not track.thread.is_alive():
                track.thread = thread
                return track
        track = _Track(len(self._tracks), name, thread)
        self._tracks.append(track)
        return track


class _Slice:
    """A context manager that records its duration. A generator would be slower."""

    __slots__ = ("_category", "_message", "_name", "_recorder", "_start")

    def __init__(
        self, recorder: Recorder, category: str, name: str, message: Message | None
    ) -> None:
        self._recorder = recorder
        self._category, self._name, self._message = category, name, message

    def __enter__(self) -> None:
        self._start = now()

    def __exit__(self, *_: object) -> None:
        self._recorder.add(self._category, self._name, self._start, None, self._message)
