"""A scheduler that runs one thread at a time, in an order drawn from a seed.

The threads of a simulation are threads of the system, but each of them runs only while it
has the turn. The turn changes at *switch points*: where code takes or gives back a lock,
waits, or uses a socket. So a run depends on the seed alone, and a failing seed fails
again. The clock is virtual: it advances a little at each switch point, and to the next
event if all threads wait.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from random import Random
from typing import Any

STEP = 1e-6
"""Seconds that pass at a switch point."""
MAX_STEPS = 40_000
"""Switch points of a run at most: more mean that its threads run in a circle."""
MAX_TIME = 300.0
"""Virtual seconds of a run at most: more mean that it waits for something in vain."""


class Deadlock(Exception):  # noqa: N818 - what is found
    """All threads wait, and nothing is left to happen."""


class Killed(BaseException):
    """Raised in every thread once the simulation has failed or is over."""


class Task:
    """A thread of the simulation; `node` is what it belongs to."""

    def __init__(self, name: str, node: str) -> None:
        self.name, self.node = name, node
        self.turn = threading.Semaphore(0)
        self.done = False
        self.is_killed = False
        self.is_blocked = False
        self.waits = 0  # the number of its wait; a timer of an earlier one is void
        self.was_woken = False
        self.joiners: list[Task] = []


class Scheduler:
    """Runs tasks, one at a time.

    `now` is the virtual time in seconds, `random` what every decision is drawn from,
    `current` the task that has the turn, `on_idle` is called when all tasks wait. `preempt_after` is how many switch points a
    task passes on average before another one goes on, if it does not wait.
    """

    def __init__(
        self, seed: int, preempt_after: float = 0.0, max_steps: int = MAX_STEPS
    ) -> None:
        self.random = Random(seed)
        self._max_steps = max_steps
        self.now = 0.0
        self.steps = 0
        self.failure: BaseException | None = None
        self.on_idle: Callable[[], None] = lambda: None
        self._mean = preempt_after or self.random.choice([4, 12, 40, 200])
        self._left = 1
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._tasks: list[Task] = []
        self._ready: list[Task] = []
        # By node, the tasks of stopped nodes that would have the turn otherwise.
        self._stopped: dict[str, list[Task]] = {}
        self._is_over = False
        self._main = Task("main", "")
        self.current = self._main

    # For the code that is simulated.

    def step(self) -> None:
        """A switch point."""
        if self._is_over:
            raise Killed
        self.steps += 1
        self.now += STEP
        if self._events and self._events[0][0] <= self.now:
            self._fire()
        self._left -= 1
        if self.current.node in self._stopped:
            self._make_ready(self.current)
            self._pass_on()
        elif self._left <= 0:
            self._left = self._draw_steps()
            if self._ready:
                self._ready.append(self.current)
                self._pass_on()

    def block(self, timeout: float | None = None) -> bool:
        """Wait until `wake`; return False if `timeout` seconds pass before."""
        if self._is_over:
            raise Killed
        task = self.current
        task.waits += 1
        task.is_blocked, task.was_woken = True, False
        if timeout is not None:
            number = task.waits

            def end() -> None:
                if task.is_blocked and task.waits == number:
                    task.is_blocked = False
                    self._make_ready(task)

            self.at(self.now + timeout, end)
        self._pass_on()
        return task.was_woken

    def wake(self, task: Task) -> None:
        """End the wait of a task."""
        if task.is_blocked:
            task.is_blocked, task.was_woken = False, True
            self._make_ready(task)

    def _make_ready(self, task: Task) -> None:
        self._stopped.get(task.node, self._ready).append(task)

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call `call` at a time, which must not wait."""
        self._order += 1
        heapq.heappush(self._events, (time, self._order, call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(self.now + seconds, call)

    def spawn(self, call: Callable[[], Any], name: str, node: str = "") -> Task:
        """Begin a task; an exception that it does not handle fails the simulation."""
        task = Task(name, node or self.current.node)
        self._tasks.append(task)

        def run() -> None:
            task.turn.acquire()
            try:
                if not self._is_over:
                    call()
            except Killed:
                pass
            except BaseException as error:
                error.add_note(f"in {task.name}, at {self.now:.6f} s")
                self.failure = self.failure or error
            task.done = True
            for each in task.joiners:
                self.wake(each)
            self._end(task)

        threading.Thread(target=run, name=name, daemon=True).start()
        self._make_ready(task)
        return task

    def join(self, task: Task, timeout: float | None = None) -> None:
        self.step()
        if not task.done:
            task.joiners.append(self.current)
            self.block(timeout)

    # For the test.

    def stop(self, node: str) -> None:
        """Let no task of a node run until `go_on`; called by an event."""
        self._stopped[node] = [task for task in self._ready if task.node == node]
        self._ready = [task for task in self._ready if task.node != node]

    def go_on(self, node: str) -> None:
        """End a `stop`."""
        self._ready += self._stopped.pop(node)

    def kill(self, node: str) -> None:
        """Let no task of a node run any more; called by an event."""
        if node not in self._stopped:
            self.stop(node)
        for task in self._tasks:
            task.is_killed = task.is_killed or task.node == node

    def run(self) -> None:
        """Run all tasks to their ends; raises the first failure of one."""
        self._left = self._draw_steps()
        self._hand_over(self._main)
        self._is_over = True
        for task in self._tasks:
            while not task.done:
                self.current = task
                task.turn.release()
                self._main.turn.acquire()
        if self.failure is not None:
            raise self.failure

    # Internal.

    def _draw_steps(self) -> int:
        return 1 + int(self.random.expovariate(1 / self._mean))

    def _next(self) -> Task:
        """Take the task that has the next turn."""
        while not self._ready and self.failure is None:
            is_over = all(task.done or task.is_killed for task in self._tasks)
            if is_over or not self._events or self._events[0][0] > MAX_TIME:
                return self._main
            try:
                self.on_idle()
            except AssertionError as error:
                self.failure = error
            self.now = max(self.now, self._events[0][0])
            self._fire()
        if self.failure is not None or self.steps > self._max_steps:
            return self._main
        at = int(self.random.random() * len(self._ready))
        ready = self._ready
        ready[at], ready[-1] = ready[-1], ready[at]
        return ready.pop()

    def _fire(self) -> None:
        events = self._events
        while events and events[0][0] <= self.now:
            heapq.heappop(events)[2]()

    def _pass_on(self) -> None:
        """Give the turn to another task, and wait for the next one."""
        task = self.current
        following = self._next()
        if following is not task:
            self.current = following
            following.turn.release()
            task.turn.acquire()
        if self._is_over:
            raise Killed

    def _hand_over(self, main: Task) -> None:
        following = self._next()
        if following is not main:
            self.current = following
            following.turn.release()
            main.turn.acquire()
        if self.failure is None:
            if self.steps > self._max_steps:
                self.failure = Deadlock("the threads run in a circle")
            elif waiting := [
                task.name for task in self._tasks if not (task.done or task.is_killed)
            ]:
                self.failure = Deadlock(f"{', '.join(waiting)} wait in vain")

    def _end(self, task: Task) -> None:
        """Give the turn away for good."""
        following = self._main if self._is_over else self._next()
        self.current = following
        following.turn.release()
