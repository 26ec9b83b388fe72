"""Handles signals to the process of a node.

A node with a launcher only reports signals. The launcher treats them like signals to itself.
A node that was started by hand or by an engine applies the same rules (`Interruption`) to
its own state: it asks all nodes to stop after the same step, or it ends the run. If it
writes events, it also reports the signals.
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
"""Seconds between checks of the time limits, after the first signal."""
UNWIND_TIMEOUT = 2.0
"""Seconds that the compute thread has to notice that a signal has ended the run."""


class NodeSignals:
    """Reacts to the signals to the process of a node.

    Args:
        pipe: waits for the signals.
        interruption: decides how a node without a launcher reacts.
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
        self._execution: Execution | None = None
        self._is_stopping = False  # the run must stop after a step
        self._asked: Execution | None = None  # the attempt that was asked to stop

    def report_to(self, node: str, report: Report) -> None:
        """Start to report signals to the launcher of `node`, until the process ends."""

        def run() -> None:
            while not self._pipe.has_ended:
                number = self._pipe.next()
                if number is not None:
                    report(SignalReceived(node, number))

        _start_thread(run)

    def obey(self, execution: Execution, *, reports: bool) -> None:
        """React to signals until `close`, in a node without a launcher.

        Called at the beginning of each attempt. If `reports`, the signals are also reported as
        events.
        """
        self._reports = reports
        with self._lock:
            is_first, self._execution = self._execution is None, execution
        if is_first:
            _start_thread(self._obey_signals)

    def _obey_signals(self) -> None:
        while not self._pipe.has_ended:
            is_asked = bool(self._signals.received) or self._is_stopping
            number = self._pipe.next(POLL_INTERVAL if is_asked else None)
            with self._lock:
                if self._is_over:
                    return
                assert self._execution is not None
                self._obey(self._execution, number)

    def unwind(self) -> None:
        """Note that the compute thread has left the run and now closes its channel."""
        with self._lock:
            self._is_unwinding = True

    def close(self) -> None:
        """Note that the run is over. The caller now ends the process."""
        with self._lock:
            self._is_over = True

    def raise_first(self, steps: int | None = None, failure: str | None = None) -> None:
        """Raise the exception of the first signal, if the node has reacted to any.

        Args:
            steps: the number of steps in the run's result; None without a result.
            failure: the failure of the run, if any. It is ignored if a signal has ended the
                run.
        """
        if self._signals.received:
            failure = failure if self._ended_at is None else None
            self._signals.raise_first(self.interruption.outcome(steps, failure))

    def _obey(self, execution: Execution, number: int | None) -> None:
        """React to the signals so far, and to a new signal `number`. Holds the lock."""
        if number == STOP_SIGNAL:
            self._is_stopping, number = True, None
        # An attempt cannot be asked before its nodes have joined.
        can_ask = execution.step or not execution.options.restarts
        if self._is_stopping and self._asked is not execution and can_ask:
            self._ask_to_stop(execution)
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
            # The reader of the reported signal shows the warning.
            (lambda warning: None) if self._reports else execution.report,
            stop=lambda: self._ask_to_stop(execution),
            end=lambda: self._end_run(execution),
            recovers=execution.goes_back,
        )

    def _ask_to_stop(self, execution: Execution) -> None:
        # A request may wait until a peer has received messages.
        self._is_stopping, self._asked = True, execution
        _start_thread(lambda: _request_stop(execution))

    def _end_run(self, execution: Execution) -> None:
        """End the run. After a second signal, also end this process immediately."""
        self._ended_at = time.monotonic()
        what, where = self.interruption.cause, execution.where()
        node = execution.me.name
        cause = Cause(node, where, what, is_interruption=True, is_final=True)
        execution.channel.abort(cause)
        if len(self._signals.received) > 1:
            self._exit()

    def _exit(self) -> NoReturn:
        self._signals.exit_first(self.interruption.outcome(None))


def _request_stop(execution: Execution) -> None:
    with suppress(
        RunError
    ):  # the run has failed or ended; the compute thread reports it
        execution.common_step.request(Action.STOP)


def _start_thread(call: Callable[[], None]) -> None:
    threading.Thread(target=call, name="placer signals", daemon=True).start()
