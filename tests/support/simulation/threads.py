"""What `threading` and `time` have, under the scheduler of a simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from support.simulation.scheduler import Scheduler, Task


class SimulatedThreading:
    """Stands for the module `threading`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def Lock(self) -> Lock:  # noqa: N802 - as in threading
        return Lock(self._scheduler)

    def RLock(self) -> RLock:  # noqa: N802
        return RLock(self._scheduler)

    def Condition(self, lock: Any = None) -> Condition:  # noqa: N802
        return Condition(self._scheduler, lock or RLock(self._scheduler))

    def Thread(self, **arguments: Any) -> Thread:  # noqa: N802
        return Thread(self._scheduler, **arguments)

    def current_thread(self) -> Task:
        return self._scheduler.current


class SimulatedTime:
    """Stands for the module `time`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.now

    def perf_counter(self) -> float:
        return self._scheduler.now


class RLock:
    """A lock that its owner may take again; each first take is a switch point."""

    is_reentrant = True

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.owner: Task | None = None
        self._count = 0
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True) -> bool:
        scheduler = self._scheduler
        if self.owner is scheduler.current and self.is_reentrant:
            self._count += 1
            return True
        scheduler.step()
        while self.owner is not None:
            if not blocking:
                return False
            self._waiting.append(scheduler.current)
            scheduler.block()
        self.owner, self._count = scheduler.current, 1
        return True

    def release(self) -> None:
        self._count -= 1
        if self._count <= 0:
            self.free()
            self._scheduler.step()

    def free(self) -> int:
        """Give the lock back; return how often it was taken."""
        count, self._count, self.owner = self._count, 0, None
        if self._waiting:
            at = self._scheduler.random.randrange(len(self._waiting))
            self._scheduler.wake(self._waiting.pop(at))
        return count

    def take(self, count: int) -> None:
        """Take the lock as often as `free` has said."""
        self.acquire()
        self._count = count

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class Lock(RLock):
    """A lock that its owner may not take again."""

    is_reentrant = False


class Condition:
    """A condition over a lock."""

    def __init__(self, scheduler: Scheduler, lock: RLock) -> None:
        self._scheduler = scheduler
        self._lock = lock
        self._waiting: list[Task] = []
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *error: Any) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler
        assert self._lock.owner is scheduler.current
        self._waiting.append(scheduler.current)
        count = self._lock.free()
        was_woken = scheduler.block(timeout)
        if scheduler.current in self._waiting:
            self._waiting.remove(scheduler.current)
        self._lock.take(count)
        return was_woken

    def wait_for(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        assert timeout is None
        while not (result := ready()):
            self.wait()
        return result

    def notify_all(self) -> None:
        assert self._lock.owner is self._scheduler.current
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._scheduler.wake(task)


class Thread:
    """A thread, which is a task once it has started."""

    def __init__(
        self,
        scheduler: Scheduler,
        target: Callable[..., Any],
        name: str = "",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        daemon: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._call = lambda: target(*args, **(kwargs or {}))
        self.name = name
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._scheduler.spawn(self._call, self.name)
        self._scheduler.step()

    def join(self, timeout: float | None = None) -> None:
        assert self._task is not None
        self._scheduler.join(self._task, timeout)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done
