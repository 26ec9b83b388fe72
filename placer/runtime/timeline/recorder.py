"""Records the activities of one node's threads in a bounded amount of memory.

A *slice* is an activity of one thread from one time to another, such as a call or a part of
a call. Slices of a thread nest. A slice is recorded when it ends. Times are nanoseconds of
the monotonic clock.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from placer.channel.interface import Key

now = time.monotonic_ns
COLUMNS: Final = 11
"""The number of integers per slice: the track, the name, the start, the end, the direction,
the name of the peer, and the edge, step, microbatch, bytes and values of the message."""
SENT, RECEIVED, WAITED = 1, 2, 3
"""The directions of a message; WAITED if the slice is a wait for the peers. The direction of
other slices is 0."""
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
PROGRAM: Final = "program"
"""The name of the track of the thread that runs the hooks `step` and `evaluate`."""


class Message(NamedTuple):
    """A message that a slice sends, receives or waits for.

    Attributes:
        direction: SENT, RECEIVED or WAITED.
        peer: the other node; the nodes of a wait, with spaces between them.
        key: the address of the message.
        nbytes: the size; 0 if it is unknown.
        values: the names of the values, with spaces between them.
    """

    direction: int
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
        self._count = 0
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
        end: int,
        message: Message | None = None,
    ) -> None:
        """Record a slice of this thread, if the recorder is active."""
        if not self.active:
            return
        with self._lock:
            if self._count >= self._limit:
                self.left_out += 1
                self.full_in = self.full_in or self.step
                return
            self._count += 1
            track = self._track()
            numbers = (track.number, self._name(category, name), start, end)
            if message is None:
                track.numbers.extend((*numbers, 0, 0, 0, 0, 0, 0, 0))
            else:
                direction, peer, key, nbytes, values = message
                texts = self._name("", peer), self._name("", values)
                track.numbers.extend(
                    (*numbers, direction, texts[0], *key[:3], nbytes, texts[1])
                )

    @contextmanager
    def slice(
        self, category: str, name: str, message: Message | None = None
    ) -> Iterator[None]:
        """Return a context manager that records its duration as a slice, even if it raises."""
        start = now()
        try:
            yield
        finally:
            self.add(category, name, start, now(), message)

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
        return self._names.setdefault((category, name), len(self._names))

    def _track(self) -> _Track:
        """Return the track of this thread. It reuses the track of an ended namesake."""
        track: _Track | None = getattr(self._local, "track", None)
        if track is None:
            thread = threading.current_thread()
            name = thread.name.removeprefix("placer ")
            for track in self._tracks:
                if track.name == name and not track.thread.is_alive():
                    track.thread = thread
                    break
            else:
                track = _Track(len(self._tracks), name, thread)
                self._tracks.append(track)
            self._local.track = track
        return track
