"""Callbacks: objects of the user that are called with the progress of a run.

Callbacks run in the launching process, in the thread that called `placer.launch`, one call
at a time. Reported steps wait in a queue, and the nodes wait for slow callbacks (see `pace`).
Nodes of an engine's job cannot wait. Instead, once `MAX_PENDING` of their steps are queued,
no further steps are read from the control node. No step is skipped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

from placer.errors import PlacerError, nearest
from placer.runtime.control.events import Event, Step
from placer.runtime.control.result import Metrics

MAX_PENDING: Final = 64
"""The largest number of queued steps of an engine's job."""
HOOKS: Final = ("on_step", "on_evaluation", "on_epoch")
"""The methods of a callback, in the order of the calls after a step."""
_PREFIX: Final = "on_"
"""The first letters of these methods: other methods with this prefix are mistakes."""


class Stop:
    """The type of `placer.STOP`."""

    def __repr__(self) -> str:
        return "placer.STOP"


STOP: Final = Stop()
"""The value that a method of a callback returns to end the run."""


@dataclass(frozen=True, slots=True)
class Record:
    """The argument of a callback: a step with the evaluation after it, or an epoch.

    Attributes:
        step: the number of the step, from 1. For an epoch, the number of its last step.
        epoch: the number of the epoch, from 1.
        metrics: the metrics of the step. For an epoch, the metrics over all its rows.
        eval: the metrics of the evaluation after the step; None without an evaluation.
        learning_rates: the learning rate of each optimizer in the step, by name.
        seconds: the time from the start of the first step to the end of this step.
        samples_per_second: rows of the global batch per second since the first step; 0 for
            the first step of a process.
        time: the time of the report, in seconds since 1970 (Unix time).
        again: whether the callback has received the step before. After a failure, a run with
            `restarts` repeats the steps after the last checkpoint. Asynchronous training then
            has other metrics. Repeated steps of synchronous training are equal, and callbacks
            receive each step once.
    """

    step: int
    epoch: int
    metrics: Metrics
    eval: Metrics | None = None
    learning_rates: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    samples_per_second: float = 0.0
    time: float = 0.0
    again: bool = False


class Callback:
    """Base class of callbacks: `placer.launch(build, callbacks=[...])`.

    Override any of the methods. An object of another class is also a callback if it has one
    of the methods. Another method with a name that begins with `on_` is an error. They run in the thread that called `placer.launch`, in the order of the
    steps. After each step, all `on_step` run in the order of the list, then all
    `on_evaluation`, then all `on_epoch`. Meanwhile the run continues for up to 8 steps; then
    all workers wait for the callback. A job of an engine does not wait, but warns.

    To end the run, return `placer.STOP` from a method. All nodes then stop after the same
    step, usually the current step, and save a checkpoint if the run saves any.
    `placer.launch` returns the result. Steps are still reported until the run stops. Other
    return values are ignored. An exception ends the run, and `placer.launch` raises it.

    Example:
        class StopWhenGood(placer.Callback):
            def on_evaluation(self, record):
                if record.eval["accuracy"] > 0.98:
                    return placer.STOP

        placer.launch("build", callbacks=[StopWhenGood()])
    """

    def on_step(self, record: Record) -> object:
        """Called after each training step.

        Args:
            record: the step. `record.eval` contains the evaluation after it, if any.

        Returns:
            `placer.STOP` to end the run.
        """

    def on_evaluation(self, record: Record) -> object:
        """Called after each evaluation.

        Args:
            record: the step before the evaluation. `record.eval` contains the metrics.

        Returns:
            `placer.STOP` to end the run.
        """

    def on_epoch(self, record: Record) -> object:
        """Called after each complete epoch, or pass of a stream.

        Args:
            record: the last step of the epoch. `record.metrics` covers all rows of the
                epoch.

        Returns:
            `placer.STOP` to end the run.
        """


def check_callbacks(callbacks: Iterable[object]) -> tuple[Any, ...]:
    """Return the callbacks as a tuple.

    Raises PlacerError if an object is not a callback, or has an unknown method `on_…`.
    """
    try:
        checked = tuple(callbacks)
    except TypeError:
        raise PlacerError(
            f"'callbacks' must be a list of callbacks, not {type(callbacks).__name__}",
            hint="write callbacks=[MyCallback()]",
        ) from None
    for number, each in enumerate(checked):
        if isinstance(each, type):
            raise PlacerError(
                f"callbacks[{number}] is the class {each.__name__}, not an object",
                hint=f"write {each.__name__}()",
            )
        methods = [name for name in dir(each) if callable(getattr(each, name, None))]
        _check_methods(f"callbacks[{number}], of type {type(each).__name__},", methods)
    return checked


def _check_methods(what: str, methods: Iterable[str]) -> None:
    """Raise PlacerError if the methods of an object are not those of a callback."""
    named = [name for name in methods if name.startswith(_PREFIX)]
    listed = f"{', '.join(HOOKS[:-1])} or {HOOKS[-1]}"
    for name in named:
        if name not in HOOKS:
            close = nearest(name, HOOKS)
            raise PlacerError(
                f"{what} has the method '{name}', which is never called",
                hint=f"did you mean '{close}'? " * (close is not None)
                + f"A method that begins with '{_PREFIX}' is {listed}",
            )
    if not named:
        raise PlacerError(
            f"{what} has no method {listed}",
            hint="derive its class from placer.Callback",
        )


def records_of(step: Step) -> list[tuple[str, Record]]:
    """Return the methods to call after a step, each with its argument."""
    record = Record(
        step.step,
        step.epoch,
        step.metrics,
        step.eval,
        step.learning_rates,
        step.seconds,
        step.samples_per_second,
        step.time,
        step.again,
    )
    calls = [("on_step", record)]
    if step.eval is not None:
        calls.append(("on_evaluation", record))
    if step.epoch_metrics is not None:
        calls.append(("on_epoch", replace(record, metrics=step.epoch_metrics)))
    return calls


class CallbackQueue:
    """A queue of steps for the callbacks of a run.

    The thread that receives events adds steps. The launching thread, possibly the same
    thread, takes them and calls the callbacks.

    Args:
        callbacks: the checked callbacks.
        on_stop: called once, when a callback returns `placer.STOP`. It may be set later,
            before the first step is taken.

    Attributes:
        on_called: called when the callbacks have finished a step.
        guard: returns a context manager around the calls for a step.
    """

    def __init__(
        self, callbacks: Sequence[Any], on_stop: Callable[[], None] = lambda: None
    ) -> None:
        self._callbacks = callbacks
        self.on_stop = on_stop
        self.on_called: Callable[[], object] = lambda: None
        self.guard: Callable[[], AbstractContextManager[object]] = nullcontext
        self._pending: deque[Step] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._stopped = False
        self._woken = False

    @property
    def has_callbacks(self) -> bool:
        return bool(self._callbacks)

    @property
    def has_stopped(self) -> bool:
        """Whether a callback has returned `placer.STOP`."""
        return self._stopped

    @property
    def is_full(self) -> bool:
        """Whether the caller should add no more steps."""
        return len(self._pending) >= MAX_PENDING

    @property
    def has_steps(self) -> bool:
        """Whether the queue contains a step."""
        return bool(self._pending)

    def add(self, event: Event) -> None:
        """Add an event. Events other than steps are ignored."""
        if not self._callbacks or not isinstance(event, Step):
            return
        with self._changed:
            if not self._closed:
                self._pending.append(event)
                self._changed.notify_all()

    def wake(self) -> None:
        """Make the current or the next call of `wait` return."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until a step is added, `wake` is called, or `seconds` have passed."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._woken, seconds)
            self._woken = False

    def close(self) -> None:
        """Drop all queued steps, and ignore later ones."""
        with self._changed:
            self._closed = True
            self._pending.clear()
            self._changed.notify_all()

    def call_next(self) -> bool:
        """Pass the next step to all callbacks; return whether the queue contained a step.

        Raises the exception of a callback, with a note that names the callback.
        """
        with self._changed:
            if not self._pending:
                return False
            step = self._pending.popleft()
            self._changed.notify_all()
        with self.guard():
            for hook, record in records_of(step):
                for callback in self._callbacks:
                    self._call(callback, hook, record)
        self.on_called()
        return True

    def _call(self, callback: Any, hook: str, record: Record) -> None:
        method = getattr(callback, hook, None)
        if method is None:
            return
        try:
            returned = method(record)
        except Exception as error:
            error.add_note(
                f"raised by the callback {type(callback).__name__}.{hook} after step"
                f" {record.step}; the run has been ended"
            )
            raise
        if returned is STOP and not self._stopped:
            self._stopped = True
            self.on_stop()
