"""Collects signals to a launcher, which waits for them together with its processes."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from placer.printable import make_printable

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a run."""
DUPLICATE_WINDOW = 0.3
"""Seconds in which several signals count as one."""


class EndedBySignal(SystemExit):
    """A signal other than SIGINT has ended a run; the status is 128 + N.

    Python prints nothing of a SystemExit: see `end_shown`.
    """

    def __init__(self, number: signal.Signals, outcome: str) -> None:
        super().__init__(128 + number)
        self._lines = [*filter(None, [outcome]), f"ended by {number.name}"]

    def show(self) -> None:
        """Print on standard error what the run has saved, and the signal, once."""
        while self._lines:
            print(make_printable(self._lines.pop(0)), file=sys.stderr)


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

    Several within `DUPLICATE_WINDOW` seconds count as one, because the parent of a
    launcher may forward a Ctrl-C that the terminal has sent to both. From the signal
    with the number `raise_from` on, their handler raises KeyboardInterrupt.
    """

    wake: int
    received: list[signal.Signals] = field(default_factory=list)
    last: float = -math.inf
    raise_from: float = math.inf

    def record(self, number: int) -> None:
        """Add a signal; called by its handler."""
        now = time.monotonic()
        if now - self.last >= DUPLICATE_WINDOW:
            self.received.append(signal.Signals(number))
            self.last = now
        if len(self.received) >= self.raise_from:
            raise KeyboardInterrupt

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


@contextmanager
def catch_signals(*, first_only: bool = False) -> Iterator[Signals]:
    """Collect signals that end a run, in place of their usual handlers.

    With `first_only`, the signals after the first one have their usual effect, and the
    caller reads and closes `wake`. A signal that the process ignores stays ignored.
    Signals can only be caught in the main thread of a program; in other threads this
    changes nothing.
    """
    wake, write = os.pipe()
    signals = Signals(wake)
    before: dict[signal.Signals, object] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # a former handler

    def handle(number: int, frame: FrameType | None) -> None:
        os.write(write, b"\n")
        signals.record(number)
        if first_only:
            restore()

    try:
        if threading.current_thread() is threading.main_thread():
            for each in END_SIGNALS:
                if signal.getsignal(each) not in (signal.SIG_IGN, None):
                    before[each] = signal.signal(each, handle)
        yield signals
    finally:
        restore()
        os.close(write)
        if not first_only:
            os.close(wake)
