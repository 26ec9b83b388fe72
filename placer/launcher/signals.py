"""Signals to a launcher, as something it can wait for beside its processes."""

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

from placer.printable import legible

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a launcher to end its run."""
SAVE_GRACE = 30.0
"""Seconds for all nodes to stop after the same step, and to begin to save, once such a
signal has come to a run that saves its parameters. Ctrl-C has no limit: whoever does not
want to wait presses it again."""

TWINS = 0.3
"""Seconds in which several signals count as one."""


@dataclass(slots=True)
class Signals:
    """The signals that have come; `wake` becomes readable with each.

    Those within `TWINS` seconds are one: what starts a launcher may pass on a Ctrl-C
    that the terminal has sent to both.
    """

    wake: int
    come: list[signal.Signals] = field(default_factory=list)
    last: float = -math.inf

    def note(self, number: int) -> None:
        """Take note of a signal. Called by its handler."""
        now = time.monotonic()
        if now - self.last >= TWINS:
            self.come.append(signal.Signals(number))
            self.last = now

    @property
    def graces(self) -> list[float | None]:
        """The seconds that each gives the nodes to save in, None for any number."""
        return [None if n == signal.SIGINT else SAVE_GRACE for n in self.come]

    def heed(self, outcome: str = "") -> None:
        """Do what the first that came asks for, once there is nothing left to end.

        KeyboardInterrupt for Ctrl-C, with what came of the run, SystemExit with status
        128 + N for the others.
        """
        if not self.come:
            return
        if self.come[0] == signal.SIGINT:
            raise KeyboardInterrupt(*filter(None, [outcome]))
        if outcome:
            print(legible(outcome), file=sys.stderr)
        print(f"ended by {self.come[0].name}", file=sys.stderr)
        raise SystemExit(128 + self.come[0])


@contextmanager
def caught() -> Iterator[Signals]:
    """Collect signals that end a run, instead of what they do otherwise.

    One that the process ignores stays ignored. Only a program's main thread can ask
    for this; in any other, signals do what they did.
    """
    wake, write = os.pipe()
    signals = Signals(wake)
    before: dict[signal.Signals, object] = {}
    fd = -1
    try:
        if threading.current_thread() is threading.main_thread():
            os.set_blocking(wake, False)
            os.set_blocking(write, False)
            fd = signal.set_wakeup_fd(write, warn_on_full_buffer=False)

            def note(number: int, frame: FrameType | None) -> None:
                signals.note(number)

            for number in ENDING:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    before[number] = signal.signal(number, note)
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as it was
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(fd)
        os.close(wake)
        os.close(write)


@contextmanager
def first_signal() -> Iterator[Signals]:
    """Collect the first SIGINT or SIGTERM; another one does what it would do otherwise.

    Only a program's main thread can ask for this. `wake` is left to whoever reads it.
    """
    wake, write = os.pipe()
    signals = Signals(wake)
    before = {number: signal.getsignal(number) for number in ENDING[:2]}

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        restore()
        signals.come.append(signal.Signals(number))
        os.write(write, b"\n")

    for number, handler in before.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, note)
    try:
        yield signals
    finally:
        restore()
        os.close(write)
