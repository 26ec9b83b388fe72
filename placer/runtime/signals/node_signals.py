"""What signals do to the process of a node.

A node with a launcher reports each signal, and the launcher treats it as one to itself.
A node that was started by hand, or by an engine, decides by the same rules
(`Interruption`) and its own state: it asks all nodes to stop after the same step, or it
ends the run. If it writes its events, the signals are among them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from placer.channel.interface import Cause
from placer.errors import RunError
from placer.runtime.control.common_step import Action
from placer.runtime.control.events import Report, SignalReceived
from placer.runtime.control.execution import Execution
from placer.runtime.signals.interruption import Interruption
from placer.runtime.signals.signals import STOP_SIGNAL, SignalPipe, Signals

POLL_INTERVAL = 0.25
"""Seconds between two checks for passed limits, once there was a signal."""
UNWIND_TIMEOUT = 2.0
"""Seconds in which the compute thread has to notice that a signal has ended the run."""


class NodeSignals:
    """The signals to the process of a node, and what follows from them.

    Args:
        pipe: waits for the signals.
        interruption: decides what they do to a node that was started by hand.
    """

    def __init__(self, pipe: SignalPipe, interruption: Interruption) -> None:
        self.interruption = interruption
        self._pipe = pipe
        self._signals = Signals(pipe.fd)
        self._lock = threading.Lock()  # held while a decision is carried out
        self._ended_at: float | None = None
        self._is_unwinding = False
        self._is_over = False
        self._reports = False

    def report_to(self, node: str, report: Report) -> None:
        """Start to report the signals to the launcher of `node`, until the process
        ends."""

        def run() -> None:
            while not self._pipe.has_ended:
                number = self._pipe.next()
                if number is not None:
                    report(SignalReceived(node, number))

        _start_thread(run)

    def obey(self, execution: Execution, *, reports: bool) -> None:
        """Start to obey the signals in the run of a node without a launcher, until
        `close`; with `reports` they are events, too."""
        self._reports = reports

        def run() -> None:
            while not self._pipe.has_ended:
                number = self._pipe.next(
                    POLL_INTERVAL if self._signals.received else None
                )
                with self._lock:
                    if self._is_over:
                        return
                    self._obey(execution, number)

        _start_thread(run)

    def unwind(self) -> None:
        """Note that the compute thread has left the run, and closes its channel."""
        with self._lock:
            self._is_unwinding = True

    def close(self) -> None:
        """Note that the run is over: the caller ends the process."""
        with self._lock:
            self._is_over = True

    def raise_first(self, steps: int | None = None, failure: str | None = None) -> None:
        """Raise what follows from the first signal, if the node has obeyed any.

        Args:
            steps: the number of steps of the run's result, None without one.
            failure: what has failed, if anything. The end of the run by a signal is no
                failure.
        """
        if self._signals.received:
            failure = failure if self._ended_at is None else None
            self._signals.raise_first(self.interruption.outcome(steps, failure))

    def _obey(self, execution: Execution, number: int | None) -> None:
        """Do what the signals so far ask for; `number` is that of a new one. Called
        with the lock held."""
        if number == STOP_SIGNAL:
            _start_thread(lambda: _request_stop(execution))
            number = None
        if number is not None:
            self._signals.add(number)
            if self._reports:
                execution.report(SignalReceived(execution.me.name, number))
        received = self._signals.received
        if not received:
            return
        if self._ended_at is not None:
            waited = time.monotonic() - self._ended_at
            is_stuck = not self._is_unwinding and waited > UNWIND_TIMEOUT
            if number is not None or is_stuck:
                self._exit()
            return
        self.interruption.obey(
            len(received),
            execution.state,
            # Whoever reads the signal says so.
            (lambda warning: None) if self._reports else execution.report,
            # In a thread: it may wait until a peer has received other messages.
            stop=lambda: _start_thread(lambda: _request_stop(execution)),
            end=lambda: self._end_run(execution),
        )

    def _end_run(self, execution: Execution) -> None:
        """End the run; after another signal, this process at once."""
        self._ended_at = time.monotonic()
        what, where = self.interruption.cause, execution.where()
        cause = Cause(execution.me.name, where, what, is_interruption=True)
        execution.channel.abort(cause)
        if len(self._signals.received) > 1:
            self._exit()

    def _exit(self) -> NoReturn:
        """End the process at once, whatever its compute thread does."""
        self._signals.exit_first(self.interruption.outcome(None))


def _request_stop(execution: Execution) -> None:
    with suppress(
        RunError
    ):  # the run has failed or ended, which its own thread reports
        execution.common_step.request(Action.STOP)


def _start_thread(call: Callable[[], None]) -> None:
    threading.Thread(target=call, name="placer signals", daemon=True).start()
