"""Times the calls of a node program by the CPU time of the process.

JAX computes in threads of its own, so the CPU time of the calling thread would miss most of
a function. A process that is timed has nothing else to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, process_time_ns
from types import FunctionType
from typing import Any, Final

from placer.runtime.node.dry_node import DryNode
from placer.runtime.node.node import Node
from placer.runtime.node.program_file import Hook

UNTIMED: Final = 3
"""The first steps of a run, which are not timed: caches are cold."""
MIN_STEPS: Final = 6
"""The smallest number of steps that are timed, however long they take."""
REST: Final = "the rest of a step"
"""The name of the time of a step that none of its calls accounts for."""
_UNTIMED_CALLS: Final = frozenset(
    {"microbatches", "messages", "batches", "keep_values", "load_values", "pop_values"}
)
"""Iterators, and calls that take no longer than timing them."""

Times = dict[str, list[int]]


@dataclass(slots=True)
class Timer:
    """Collects the CPU times of the calls of a program.

    Attributes:
        seconds: after this time, `stop` is called.
        stop: ends the run.
        between: called after each step, outside of its times.
        clock: returns the nanoseconds so far.
        alternates: whether every other step is only timed as a whole. Then no call waits
            for the results of JAX.
        times: the nanoseconds of each call by its name: the method of the node, or
            `NAME()` for a function of the program.
        plain: the nanoseconds of the steps that were timed as a whole.
        steps: the number of steps so far.
        timed_steps: how many of them were timed call by call.
    """

    seconds: float
    stop: Callable[[], object]
    between: Callable[[], object] | None = None
    clock: Callable[[], int] = process_time_ns
    alternates: bool = False
    times: Times = field(default_factory=dict)
    plain: list[int] = field(default_factory=list)
    steps: int = 0
    timed_steps: int = 0
    _until: float = 0.0
    _begin: int = 0
    _spent: int = 0
    _of_timing: int = 0
    _is_plain: bool = False

    def hook(self, step: Hook) -> Hook:
        """Return a hook `step` that times its calls, except in the warm-up."""
        import jax

        self._of_timing = _time_of_timing()
        assert isinstance(step, FunctionType)
        functions = {
            name: self._timed(f"{name}()", value)
            for name, value in step.__globals__.items()
            if isinstance(value, jax.stages.Wrapped)
        }
        timed = FunctionType(step.__code__, {**step.__globals__, **functions})

        def run(node: Node) -> None:
            if isinstance(node, DryNode):
                step(node)
                return
            self._end_step()
            if self._is_plain:
                step(node)
            else:
                timed(_TimedNode(node, self))

        return run

    def call(self, name: str, function: Callable[[], Any]) -> Any:
        """Call a function, and record the CPU time until its results are computed."""
        import jax

        start = self.clock()
        result = jax.block_until_ready(function())
        spent = self.clock() - start
        if self.steps > UNTIMED:
            self.times.setdefault(name, []).append(spent)
            self._spent += spent + self._of_timing
        return result

    def _end_step(self) -> None:
        """Note the end of a step, and begin the next one."""
        # A step ends when the next begins, so that it has the work between the two.
        if self.steps > UNTIMED:
            whole = self.clock() - self._begin
            if self._is_plain:
                self.plain.append(whole)
            else:
                self.times.setdefault(REST, []).append(max(0, whole - self._spent))
                self.timed_steps += 1
        if self.between is not None:
            self.between()
        self._until = self._until or monotonic() + self.seconds
        if monotonic() > self._until and self.steps > UNTIMED + MIN_STEPS:
            self.stop()
        self.steps += 1
        self._is_plain = self.alternates and self.steps % 2 == 1
        self._spent, self._begin = 0, self.clock()

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            return self.call(name, lambda: function(*args, **kwargs))

        return timed


def _time_of_timing() -> int:
    """Return the nanoseconds that timing a call adds to a step, outside of its time."""
    timer = Timer(0.0, lambda: None, steps=UNTIMED + 1)
    call = timer._timed("nothing", lambda: None)
    for _ in range(2):
        timer.times.clear()
        start = process_time_ns()
        for _ in range(1_000):
            call()
        whole = process_time_ns() - start
    return max(0, whole - sum(timer.times["nothing"])) // 1_000


class _TimedNode:
    """A node whose calls are timed."""

    def __init__(self, node: Node, timer: Timer) -> None:
        self._node, self._timer = node, timer

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._node, name)
        if not callable(value) or name in _UNTIMED_CALLS:
            return value
        return self._timer._timed(name, value)
