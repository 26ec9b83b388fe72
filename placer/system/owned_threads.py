"""Threads whose owner joins them and receives their first error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

END_LIMIT: Final = 2.0
"""Seconds that an owner waits for a thread that may be stuck, for example in a disk read."""


class OwnedThreads:
    """Daemon threads that share a state, with an owner that joins them.

    The first error of a thread ends the work of all threads. The owner receives the error
    at its next wait.

    Attributes:
        changed: guards the state. It is notified when a thread ends; code that changes
            the state must also notify it.
        error: the first error, or None.

    Example:
        threads = OwnedThreads()
        threads.begin(read, "placer lines")
        threads.wait_for(lambda: lines)  # raises what `read` raises
        threads.join(5)
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def begin(self, run: Callable[[], None], name: str) -> None:
        """Call `run` in a new thread with a name."""
        thread = threading.Thread(
            target=self._run_and_keep, args=(run,), name=name, daemon=True
        )
        with self.changed:
            thread.start()
            self._threads = [each for each in self._threads if each.is_alive()]
            self._threads.append(thread)

    def wait(self) -> None:
        """Wait for a change. Call it with `changed` held.

        Raises the first error, even if it came before the call, because nothing changes
        after it.
        """
        self.check()
        self.changed.wait()
        self.check()

    def wait_for(self, is_ready: Callable[[], object]) -> None:
        """Wait until `is_ready` returns True; it is called with `changed` held.

        Raises the first error, unless `is_ready` returns True at once.
        """
        with self.changed:
            while not is_ready():
                self.wait()

    def check(self) -> None:
        """Raise the first error, if any."""
        if self.error is not None:
            raise self.error

    def fail(self, error: BaseException) -> None:
        """Keep an error, if it is the first one."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def join(self, seconds: float | None = None) -> bool:
        """Wait for each thread for at most `seconds`; return True if all have ended.

        Raises nothing: see `check`.
        """
        with self.changed:
            threads = [*self._threads]
        for thread in threads:
            thread.join(seconds)
        return not any(thread.is_alive() for thread in threads)

    def _run_and_keep(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self.fail(error)
        with self.changed:
            self.changed.notify_all()
