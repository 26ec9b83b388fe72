"""Collects the signals that end a run, in a launcher and in the process of a node.

A launcher handles signals in its main thread, which also waits for its processes. The main
thread of a node may compile for minutes before Python calls a handler. A node therefore
reads signals from a pipe in another thread.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

from placer.system.descriptors import is_readable
from placer.system.printable import make_printable

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a run."""
STOP_SIGNAL = signal.SIGUSR1
"""The signal that asks a node without a launcher to stop the run after a step. As with
`placer.STOP`, the run then has a result and does not count as interrupted."""
DUPLICATE_WINDOW = 0.3
"""Several signals to a process within this many seconds count as one. A parent may forward
a signal that was sent to both processes."""


class EndedBySignal(SystemExit):
    """Raised when a signal N other than SIGINT has ended a run; the status is 128 + N.

    Python prints no message for a SystemExit; `end_shown` does.

    Attributes:
        outcome: the message for the user, such as where the parameters are.
    """

    def __init__(self, number: signal.Signals, outcome: str) -> None:
        super().__init__(128 + number)
        self._lines = _end_lines(number, outcome)
        self.outcome = outcome or self._lines[-1]

    def show(self) -> None:
        """Print the outcome of the run and the name of the signal, once."""
        while self._lines:
            print(self._lines.pop(0), file=sys.stderr)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL. Real-time signals have no name.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def status_of_shell(status: int) -> int:
    """Convert the exit status of a shell to Python's form: 128 + N becomes -N.

    N is the signal that ended the process. A node that reports a signal and then ends also
    exits with 128 + N.

    >>> status_of_shell(137), status_of_shell(3), status_of_shell(255)
    (-9, 3, 255)
    """
    return 128 - status if 128 < status < 128 + signal.NSIG else status


def shell_status(status: int) -> int:
    """Convert an exit status in Python's form to that of a shell: -N becomes 128 + N.

    >>> shell_status(-9), shell_status(3)
    (137, 3)
    """
    return status if status >= 0 else 128 - status


def how_ended(status: int) -> str:
    """Describe how a process has ended, for a message that starts with its name.

    >>> how_ended(-9), how_ended(3)
    ('was killed by SIGKILL', 'has ended with exit status 3')
    """
    if status < 0:
        return f"was killed by {signal_name(-status)}"
    return f"has ended with exit status {status}"


@contextmanager
def end_shown() -> Iterator[None]:
    """Return a context manager that prints the outcome if a signal ends the run."""
    try:
        yield
    except EndedBySignal as ended:
        ended.show()
        raise


@dataclass(slots=True)
class Signals:
    """The signals received so far.

    Several signals to one process within `DUPLICATE_WINDOW` seconds count as one. A signal
    that a scheduler sends to the launcher and to all nodes also counts as one. The number of
    signals is therefore the largest number that one process has received.

    Attributes:
        wake: a descriptor that each signal makes readable.
        arrived: all signals to all processes, in order.
        last: the time of the last counted signal to this process.
        raise_from: from this number of signals on, the handler raises KeyboardInterrupt.
        counts: the number of signals to each process.
    """

    wake: int
    arrived: list[signal.Signals] = field(default_factory=list)
    last: float = -math.inf
    raise_from: float = math.inf
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def received(self) -> list[signal.Signals]:
        """The signals that count, in order."""
        # Computed on demand, because a signal's handler can interrupt `add`.
        return self.arrived[: max(self.counts.values(), default=0)]

    def record(self, number: int) -> None:
        """Add a signal to this process. The handler of the signal calls this."""
        now = time.monotonic()
        if now - self.last >= DUPLICATE_WINDOW:
            self.last = now
            self.add(number)
        if len(self.received) >= self.raise_from:
            raise KeyboardInterrupt

    def add(self, number: int, node: str = "") -> None:
        """Add a signal to a node, or to this process if `node` is empty."""
        self.arrived.append(signal.Signals(number))
        self.counts[node] += 1

    @contextmanager
    def raised_from(self, count: float) -> Iterator[None]:
        """Return a context manager in which signals raise, from signal `count` on."""
        self.raise_from = count
        try:
            yield
        finally:
            self.raise_from = math.inf

    def raise_first(self, outcome: str = "") -> None:
        """Raise the exception of the first signal, if any. Call this after the run.

        The exception is KeyboardInterrupt for SIGINT, and EndedBySignal for other signals.
        `outcome` is the message for the user.
        """
        if not self.received:
            return
        if self.received[0] == signal.SIGINT:
            raise KeyboardInterrupt(*filter(None, [outcome]))
        raise EndedBySignal(self.received[0], outcome)

    def exit_first(self, outcome: str) -> NoReturn:
        """End the process immediately, with the message and status of the first signal."""
        print(*_end_lines(self.received[0], outcome), sep="\n", file=sys.stderr)
        sys.stderr.flush()
        os._exit(128 + self.received[0])


def _end_lines(number: signal.Signals, outcome: str) -> list[str]:
    how = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    return [*filter(None, [make_printable(outcome)]), how]


@contextmanager
def catch_signals() -> Iterator[Signals]:
    """Return a context manager that collects signals instead of their usual handlers.

    Signals that the process ignores stay ignored. Python can catch signals only in the main
    thread; in other threads this has no effect.
    """
    wake, write = os.pipe()
    signals = Signals(wake)
    before: dict[signal.Signals, object] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        os.write(write, b"\n")
        signals.record(number)

    try:
        if threading.current_thread() is threading.main_thread():
            for each in END_SIGNALS:
                if signal.getsignal(each) not in (signal.SIG_IGN, None):
                    before[each] = signal.signal(each, handle)
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # a former handler
        os.close(write)
        os.close(wake)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Return a context manager that blocks the signals that end a run.

    They are blocked in this thread and in the processes that it starts. A signal to such a
    process is delivered when the process unblocks signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(slots=True)
class SignalPipe:
    """A pipe with the signals to the process of a node.

    Attributes:
        fd: a descriptor to read the number of each signal from, as one byte.
        has_ended: whether no more signals are written to the pipe.
    """

    fd: int
    has_ended: bool = False
    _has_received: bool = False

    def next(self, seconds: float | None = None) -> signal.Signals | None:
        """Wait for the next signal; return None if `seconds` have passed or the pipe has ended.

        Only one thread may call this. If the last call returned a signal, first wait for
        `DUPLICATE_WINDOW` seconds and drop all signals of that time.
        """
        if self._has_received:
            time.sleep(DUPLICATE_WINDOW)
            self._read()
        is_readable(self.fd, seconds)
        read = self._read()
        number = next((n for n in read if n in END_SIGNALS), None)
        self._has_received = number is not None
        if number is None and STOP_SIGNAL in read:
            number = STOP_SIGNAL
        return None if number is None else signal.Signals(number)

    def _read(self) -> bytes:
        try:
            data = os.read(self.fd, 512)
        except BlockingIOError:
            return b""
        self.has_ended = not data
        return data


@contextmanager
def signals_piped(*, launched: bool) -> Iterator[SignalPipe]:
    """Return a context manager that writes signals to a pipe instead of calling handlers.

    Signals are written immediately, even while the main thread is busy. Signals that the
    process ignores stay ignored. Call this in the main thread.

    Args:
        launched: whether a launcher started this process with signals blocked. If true, the
            signals are ignored after the context, because the launcher ends the process. If
            false, `STOP_SIGNAL` is written to the pipe as well. The signals are unblocked now.
    """
    handled = END_SIGNALS if launched else (*END_SIGNALS, STOP_SIGNAL)
    read, write = os.pipe()
    for fd in (read, write):
        os.set_blocking(fd, False)
    fd_before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    before = {
        each: signal.signal(each, _do_nothing)
        for each in handled
        if signal.getsignal(each) not in (signal.SIG_IGN, None)
    }
    end_restoring = _restore_in_forks(before)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    try:
        yield SignalPipe(read)
    finally:
        end_restoring()
        for each, handler in before.items():
            signal.signal(each, signal.SIG_IGN if launched else handler)
        signal.set_wakeup_fd(fd_before)
        # Keep the read end open: a thread may wait on it.
        os.close(write)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Ignore a signal; Python has already written its number to the pipe."""


def _restore_in_forks(
    handlers: Mapping[signal.Signals, Any],
) -> Callable[[], None]:
    """Restore the usual signal handlers in processes that are forked from this process.

    Otherwise a forked process, such as a process of a pool, would not end by a signal. It
    would write the signal to the pipe of this process.

    Returns:
        A function that disables the restoring.
    """
    is_active = True
    masks = threading.local()

    def end() -> None:
        nonlocal is_active
        is_active = False

    def block() -> None:
        if is_active:
            masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)

    def unblock() -> None:
        before = vars(masks).pop("before", None)
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def restore() -> None:
        if is_active:
            signal.set_wakeup_fd(-1)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            end()
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore)
    return end
