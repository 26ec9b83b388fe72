"""A thread that handles the items of a queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from placer.system.owned_threads import END_LIMIT, OwnedThreads

T = TypeVar("T")


class Worker(OwnedThreads, Generic[T]):
    """Calls `handle` with items, one at a time and in order, in a daemon thread.

    After the first error of `handle`, waiting items are dropped, and `put`,
    `wait_until_idle`, `is_idle`, `check` and `close` raise the error. The owner ends the
    thread with `close`, or with `end` or `drop` followed by `join`.

    Args:
        handle: called with each item.
        name: the name of the thread.
        bound: the largest number of unfinished items; None for no limit.
        at_end: called by the thread when it ends, also after an error.

    Example:
        with Worker(write_line, "placer lines", bound=64) as lines:
            lines.put("a line")  # waits while 64 lines are not written
        # All lines are written; an error of `write_line` was raised.
    """

    def __init__(
        self,
        handle: Callable[[T], object],
        name: str,
        *,
        bound: int | None = None,
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self._handle, self._name, self._bound = handle, name, bound
        self._at_end = at_end
        self._items: deque[T] = deque()
        self._is_busy = self._is_started = self._has_ended = False

    def __enter__(self) -> Worker[T]:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.drop()
            self.join(END_LIMIT)

    def start(self) -> None:
        """Start the thread, unless it has been started. Items may be added before."""
        if not self._is_started:
            self._is_started = True
            self.begin(self._run, self._name)

    def put(self, item: T) -> None:
        """Add an item, and wait while the queue is full. Raises the first error. Do not
        call it after the end: see `offer`."""
        is_added = self.offer(item)
        self.check()
        assert is_added, self._name

    def offer(self, item: T, *, waits: bool = True) -> bool:
        """Add an item, or return False after an error or the end. If the queue is full,
        wait for room; without `waits`, add the item at once."""
        with self.changed:
            if waits and self._bound is not None:
                while self._count() >= self._bound and not self._has_ended:
                    self.changed.wait()
            if not self._has_ended:
                self._items.append(item)
                self.changed.notify_all()
            return not self._has_ended

    def discard(self, is_old: Callable[[T], bool]) -> None:
        """Drop the waiting items for which `is_old` returns True, as newer items replace
        them."""
        with self.changed:
            self._items = deque(each for each in self._items if not is_old(each))
            self.changed.notify_all()

    @property
    def is_idle(self) -> bool:
        """True if all items have been handled. Raises the first error."""
        with self.changed:
            self.check()
            return not self._count()

    def wait_until_idle(self) -> None:
        """Wait until all items have been handled. Raises the first error."""
        self.check()
        self.wait_for(lambda: not self._count())

    def close(self, seconds: float | None = None) -> bool:
        """Handle the waiting items and end; return True if the thread ends within
        `seconds`."""
        self.end()
        has_ended = self.join(seconds)
        self.check()
        return has_ended

    def end(self) -> None:
        """Let the thread end after the waiting items."""
        with self.changed:
            self._has_ended = True
            self.changed.notify_all()

    def drop(self) -> list[T]:
        """Let the thread end after its current item; return the waiting items, which are
        dropped."""
        with self.changed:
            dropped = [*self._items]
            self._items.clear()
            self.end()
            return dropped

    def _count(self) -> int:
        return len(self._items) + self._is_busy

    def _run(self) -> None:
        try:
            while self._handle_next():
                pass
        except BaseException as error:
            with self.changed:
                self.fail(error)
                self.drop()
        finally:
            self._at_end()

    def _handle_next(self) -> bool:
        with self.changed:
            self._is_busy = False
            self.changed.notify_all()
            while not self._items and not self._has_ended:
                self.changed.wait()
            if not self._items:
                return False
            item = self._items.popleft()
            self._is_busy = True
        self._handle(item)
        return True
