"""Reads the rows of the next steps in a background thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Generic, Protocol, TypeVar

from placer.runtime.batches.passes import Position
from placer.system.owned_threads import END_LIMIT, OwnedThreads

T = TypeVar("T")


class WatchReading(Protocol):
    """Observes the threads that read ahead."""

    def watch_threads(self, threads: OwnedThreads) -> None:
        """Observe the waits of a thread, and the waits for the thread."""

    def reading(self, position: Position) -> AbstractContextManager[None]:
        """Return a context manager around the reading of a position."""


AHEAD: Final = 4
"""The largest number of batches that wait for their step."""


class ReadAhead(Generic[T]):
    """Values of consecutive positions, computed by a thread ahead of their use.

    Positions may be skipped. Going back to an earlier position restarts the thread there.
    """

    def __init__(
        self,
        read: Callable[[Position], T],
        following: Callable[[Position], Position | None],
        watch: WatchReading | None = None,
    ) -> None:
        """Create a reader.

        Args:
            read: computes the value of a position.
            following: returns the next position; None after the last position.
            watch: observes the thread; None without an observer.
        """
        self._read, self._following, self._watch = read, following, watch
        if watch is not None:
            self._read = _watched(read, watch)
        self._reading: _Reading[T] | None = None
        self._last: OwnedThreads | None = None
        self._current: tuple[Position, T] | None = None

    def begin(self, position: Position) -> None:
        """Start computing values from a position on."""
        self.close()
        threads = OwnedThreads()
        if self._watch is not None:
            self._watch.watch_threads(threads)
        self._reading = _Reading(
            self._read, self._following, position, self._last, threads
        )
        self._last = threads

    def take(self, position: Position) -> T:
        """Wait for the value of a position and return it. The value of the last
        position can be taken again. Raises any error of `read`."""
        if self._current is None or self._current[0] != position:
            self._current = None  # free its memory before the next value is computed
            self._current = position, self._next(position)
        return self._current[1]

    def close(self) -> None:
        """End the thread."""
        if self._reading is not None:
            self._reading.stop()
            self._reading = None

    def _next(self, position: Position) -> T:
        if self._reading is not None:
            found = self._reading.skip_to(position)
            if found is not None:
                return found.value()
        self.begin(position)
        assert self._reading is not None
        found = self._reading.skip_to(position)
        assert found is not None
        return found.value()


def _watched(
    read: Callable[[Position], T], watch: WatchReading
) -> Callable[[Position], T]:
    def watched(position: Position) -> T:
        with watch.reading(position):
            return read(position)

    return watched


class _Computed(Generic[T]):
    """The value of a position, or the error raised while computing it."""

    def __init__(self, position: Position, compute: Callable[[Position], T]) -> None:
        self.position = position
        self.error: BaseException | None = None
        try:
            self._value = compute(position)
        except BaseException as error:
            self.error = error

    def value(self) -> T:
        if self.error is not None:
            raise self.error
        return self._value


class _Reading(Generic[T]):
    """A thread that computes values from a position on."""

    def __init__(
        self,
        read: Callable[[Position], T],
        following: Callable[[Position], Position | None],
        position: Position,
        previous: OwnedThreads | None,
        threads: OwnedThreads,
    ) -> None:
        """Start the thread. It first waits for `previous`, the earlier thread, which may hang
        in a disk read: two threads must not read at the same time.
        """
        self._previous = previous
        self._read, self._following = read, following
        self._waiting: deque[_Computed[T]] = deque()
        self.threads = threads
        self._changed = self.threads.changed
        self._stopped = False
        self._next: Position | None = position
        self.threads.begin(self._run, "read ahead")

    def skip_to(self, position: Position) -> _Computed[T] | None:
        """Return the value of a position and drop all earlier values. Skipped values
        are still computed. Returns None if the thread will not compute the position."""
        with self._changed:
            while True:
                while self._waiting and self._waiting[0].position < position:
                    if self._waiting[0].error is not None:
                        return None
                    self._waiting.popleft()
                    self._changed.notify_all()
                if self._waiting:
                    if self._waiting[0].position != position:
                        return None
                    self._changed.notify_all()
                    return self._waiting.popleft()
                if self._next is None or self._next > position:
                    return None
                self.threads.wait()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self.threads.join(END_LIMIT)

    def _run(self) -> None:
        if self._previous is not None:
            self._previous.join()
            self._previous = None
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopped or len(self._waiting) < AHEAD
                )
                position = self._next
            if self._stopped or position is None:
                return
            computed = _Computed(position, self._read)
            with self._changed:
                self._waiting.append(computed)
                failed = computed.error is not None
                self._next = None if failed else self._following(position)
                self._changed.notify_all()
