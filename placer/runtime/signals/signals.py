"""Collects the signals that end a run: in a launcher, and in the process of a node.

A launcher handles them in its main thread, which waits for them together with its
processes. The main thread of a node computes, and may compile for minutes before Python
calls a handler, so a node reads them from a pipe in another thread.
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
"""Asks a node without a launcher to stop the run after a step, as `placer.STOP` does: the
run has a result, and was not interrupted."""
DUPLICATE_WINDOW = 0.3
"""Seconds in which several signals to a process count as one, because its parent may
forward a signal that was sent to both."""


class EndedBySignal(SystemExit):
    """A signal other than SIGINT has ended a run; the status is 128 + N.

    Python prints nothing of a SystemExit: see `end_shown`.
    """

    def __init__(self, number: signal.Signals, outcome: str) -> None:
        super().__init__(128 + number)
        self._lines = _end_lines(number, outcome)

    def show(self) -> None:
        """Print on standard error what the run has saved, and the signal, once."""
        while self._lines:
            print(self._lines.pop(0), file=sys.stderr)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL; a real-time signal has none.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def status_of_shell(status: int) -> int:
    """Return an exit status as Python has it, -N after signal N, for that of a shell, which
    has 128 + N. A node that reports a signal and ends has that too.

    >>> status_of_shell(137), status_of_shell(3), status_of_shell(255)
    (-9, 3, 255)
    """
    return 128 - status if 128 < status < 128 + signal.NSIG else status


def shell_status(status: int) -> int:
    """Return the exit status of a shell for one as Python has it.

    >>> shell_status(-9), shell_status(3)
    (137, 3)
    """
    return status if status >= 0 else 128 - status


def how_ended(status: int) -> str:
    """Return how a process has ended, after its name.

    >>> how_ended(-9), how_ended(3)
    ('was killed by SIGKILL', 'has ended with exit status 3')
    """
    if status < 0:
        return f"was killed by {signal_name(-status)}"
    return f"has ended with exit status {status}"


@contextmanager
def end_shown() -> Iterator[None]:
    """Print what a signal has ended, after all that is printed within the context."""
    try:
        yield
    except EndedBySignal as ended:
        ended.show()
        raise


@dataclass(slots=True)
class Signals:
    """The signals received so far; each makes the descriptor `wake` readable.

    Several to one process within `DUPLICATE_WINDOW` seconds count as one. A signal to
    the launcher and to all nodes, as by a scheduler that ends a job, counts as one too,
    however late a node reports it: `received` has as many as the process that has
    received most of them.

    From the signal with the number `raise_from` on, their handler raises
    KeyboardInterrupt.
    """

    wake: int
    arrived: list[signal.Signals] = field(default_factory=list)
    last: float = -math.inf
    raise_from: float = math.inf
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def received(self) -> list[signal.Signals]:
        """The signals so far, in their order."""
        # Counted when it is asked for, since the handler of a signal can interrupt `add`.
        return self.arrived[: max(self.counts.values(), default=0)]

    def record(self, number: int) -> None:
        """Add a signal to this process; called by its handler."""
        now = time.monotonic()
        if now - self.last >= DUPLICATE_WINDOW:
            self.last = now
            self.add(number)
        if len(self.received) >= self.raise_from:
            raise KeyboardInterrupt

    def add(self, number: int, node: str = "") -> None:
        """Add a signal to a node, or to this process."""
        self.arrived.append(signal.Signals(number))
        self.counts[node] += 1

    @contextmanager
    def raised_from(self, count: float) -> Iterator[None]:
        """Let signals interrupt what runs in the context, once there are `count`."""
        self.raise_from = count
        try:
            yield
        finally:
            self.raise_from = math.inf

    def raise_first(self, outcome: str = "") -> None:
        """Raise the exception of the first signal, if any; call it after all has ended.

        Raises KeyboardInterrupt with the text `outcome` for SIGINT, EndedBySignal for
        other signals.
        """
        if not self.received:
            return
        if self.received[0] == signal.SIGINT:
            raise KeyboardInterrupt(*filter(None, [outcome]))
        raise EndedBySignal(self.received[0], outcome)

    def exit_first(self, outcome: str) -> NoReturn:
        """End the process at once, with the text and the status of the first signal."""
        print(*_end_lines(self.received[0], outcome), sep="\n", file=sys.stderr)
        sys.stderr.flush()
        os._exit(128 + self.received[0])


def _end_lines(number: signal.Signals, outcome: str) -> list[str]:
    """Return what is printed of a run that a signal has ended: what it has saved, and
    how it ended, as the command line says it of a KeyboardInterrupt."""
    how = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    return [*filter(None, [make_printable(outcome)]), how]


@contextmanager
def catch_signals() -> Iterator[Signals]:
    """Collect signals that end a run, in place of their usual handlers.

    A signal that the process ignores stays ignored. Signals can only be caught in the
    main thread of a program; in other threads this changes nothing.
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
    """Block the signals that end a run in this thread and in processes that it starts.

    A signal to such a process waits until the process catches signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(slots=True)
class SignalPipe:
    """Waits for the signals to the process of a node.

    Attributes:
        fd: a descriptor from which the number of each signal can be read, as one byte.
        has_ended: whether signals are not written to the pipe any more.
    """

    fd: int
    has_ended: bool = False
    _has_received: bool = False

    def next(self, seconds: float | None = None) -> signal.Signals | None:
        """Wait for the next signal, for at most `seconds` if that is not None; called
        by one thread.

        After a signal this waits for `DUPLICATE_WINDOW`, and drops what has arrived.
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
    """Write the signals that end a run to a pipe, in place of their usual handlers.

    They are written at once, whatever the main thread does. In a process that was
    started with these signals blocked (`launched`), they arrive from now on; after the
    context they are ignored, because the launcher ends the process. In others
    `STOP_SIGNAL` is written, too. A signal that the process ignores stays ignored. Called
    in the main thread.
    """
    read, write = os.pipe()
    for fd in (read, write):
        os.set_blocking(fd, False)
    fd_before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    before = {
        each: signal.signal(each, _do_nothing)
        for each in (END_SIGNALS if launched else (*END_SIGNALS, STOP_SIGNAL))
        if signal.getsignal(each) not in (signal.SIG_IGN, None)
    }
    end_restoring = _restore_in_forks(before)
    if launched:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
    try:
        yield SignalPipe(read)
    finally:
        end_restoring()
        for each, handler in before.items():
            signal.signal(each, signal.SIG_IGN if launched else handler)
        signal.set_wakeup_fd(fd_before)
        # Not the other end: a thread may wait for it.
        os.close(write)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal whose number Python has written to the pipe."""


def _restore_in_forks(
    handlers: Mapping[signal.Signals, Any],
) -> Callable[[], None]:
    """Give processes that are forked from this one, such as those of a pool, the usual
    handlers of signals. Otherwise they would not end by a signal, and write it to the
    pipe of this process.

    Returns a function that ends this.
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
