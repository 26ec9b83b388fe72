"""Records what the threads of one node do, in memory that has a bound.

What is recorded is a *slice*: something that one thread did from one time to another.
The slices of a thread nest, because it records each when it has ended: a call, or a part
of a call. Times are nanoseconds of the monotonic clock.
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
COLUMNS: Final = 10
"""The numbers of a slice: those of its track and its name, its start and its end, its
direction, the number of the peer's name, the edge, step and microbatch of its message,
and the message's bytes."""
SENT, RECEIVED = 1, 2
"""The directions of a message; a slice without a message has 0."""
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
    """A message that a slice sends or receives; `nbytes` is 0 if it is not known."""

    direction: int
    peer: str
    key: Key
    nbytes: int = 0


@dataclass(slots=True)
class _Track:
    """The slices of one thread; the thread of a later track may have the same name."""

    number: int
    name: str
    thread: threading.Thread
    numbers: array[int] = field(default_factory=lambda: array("q"))


class Recorder:
    """The slices of one node.

    It is created by the thread that runs the hooks of the program.

    Args:
        limit: how many slices are kept; those after them are counted.

    Attributes:
        active: whether slices are recorded now.
        step: the number of the current step.
        left_out: how many slices did not fit.
        full_in: the step in which the first one did not fit, 0 if all did.
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
                track.numbers.extend((*numbers, 0, 0, 0, 0, 0, 0))
            else:
                direction, peer, key, nbytes = message
                peer_name = self._name("", peer)
                track.numbers.extend((*numbers, direction, peer_name, *key[:3], nbytes))

    @contextmanager
    def slice(
        self, category: str, name: str, message: Message | None = None
    ) -> Iterator[None]:
        """Record the time within the context as a slice, also if it raises."""
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
        """The category and the text of each name, by its number."""
        return list(self._names)

    @property
    def tracks(self) -> list[str]:
        """The name of each track, by its number."""
        return [track.name for track in self._tracks]

    def numbers(self) -> array[int]:
        """Return the numbers of all slices, `COLUMNS` for each, by track, in the order
        in which the slices of the track have ended."""
        with self._lock:
            joined = array("q")
            for track in self._tracks:
                joined.extend(track.numbers)
            return joined

    def _name(self, category: str, name: str) -> int:
        return self._names.setdefault((category, name), len(self._names))

    def _track(self) -> _Track:
        """Return the track of this thread; a thread that begins when another one with
        its name has ended continues the track."""
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
