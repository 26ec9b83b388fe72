"""The file descriptors of a simulation, and how `epoll`, `poll` and eventfd report them."""

from __future__ import annotations

import os
import select
from typing import Any

from support.simulation.scheduler import Scheduler, Task

FIRST = 1 << 20
"""The first number of a file, above those of the system."""
_ALWAYS = select.EPOLLERR | select.EPOLLHUP


class File:
    """A file with a number, which is given again after `close`; `owner` is the node whose
    end closes it."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.owner = files.scheduler.current.node
        self.closed = False
        self.watchers: list[Epoll] = []
        self._fd = files.add(self)

    def fileno(self) -> int:
        return -1 if self.closed else self._fd

    def events(self) -> int:
        """Return what can be done now, as flags of `epoll`."""
        raise NotImplementedError

    def changed(self) -> None:
        """Wake those that wait for events of this file."""
        for epoll in self.watchers:
            epoll.note(self._fd)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            for epoll in [*self.watchers]:
                epoll.forget(self._fd)
            self.watchers.clear()
            self.files.remove(self._fd)


class Files:
    """The open files; stands for the module `select`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.open: dict[int, File] = {}

    def add(self, file: File) -> int:
        fd = FIRST
        while fd in self.open:
            fd += 1
        self.open[fd] = file
        return fd

    def remove(self, fd: int) -> None:
        del self.open[fd]

    def owned_by(self, node: str) -> list[File]:
        return [file for file in self.open.values() if file.owner == node]

    def epoll(self) -> Epoll:
        return Epoll(self)

    def poll(self) -> Poll:
        return Poll(Epoll(self))

    def __getattr__(self, name: str) -> Any:
        return getattr(select, name)


class SimulatedOs:
    """Stands for the module `os`."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def eventfd(self, count: int, flags: int) -> int:
        return EventFile(self._files).fileno()

    def eventfd_write(self, fd: int, count: int) -> None:
        self._files.scheduler.step()
        file = self._files.open[fd]
        assert isinstance(file, EventFile)
        file.is_set = True
        file.changed()

    def close(self, fd: int) -> None:
        self._files.open[fd].close()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class EventFile(File):
    """An eventfd that nobody reads."""

    is_set = False

    def events(self) -> int:
        return select.EPOLLIN if self.is_set else 0


class Epoll(File):
    """An epoll, level-triggered, edge-triggered or one-shot, also inside another one."""

    def __init__(self, files: Files) -> None:
        self._watched: dict[int, tuple[File, int]] = {}
        self._edges: set[int] = set()
        self._waiting: list[Task] = []
        super().__init__(files)

    def register(self, file: int | File, events: int) -> None:
        fd = file if isinstance(file, int) else file.fileno()
        assert fd not in self._watched
        self.files.open[fd].watchers.append(self)
        self._set(fd, events | _ALWAYS)

    def modify(self, file: int | File, events: int) -> None:
        fd = file if isinstance(file, int) else file.fileno()
        assert fd in self._watched
        self._set(fd, events | _ALWAYS)

    def unregister(self, fd: int) -> None:
        self._watched[fd][0].watchers.remove(self)
        self.forget(fd)

    def forget(self, fd: int) -> None:
        self._watched.pop(fd, None)
        self._edges.discard(fd)

    def _set(self, fd: int, events: int) -> None:
        self._watched[fd] = self.files.open[fd], events
        self.note(fd)

    def note(self, fd: int) -> None:
        """Note that a file that is watched has changed."""
        self._edges.add(fd)
        if self._waiting or self.watchers:
            file, events = self._watched[fd]
            if file.events() & events:
                waiting, self._waiting = self._waiting, []
                for task in waiting:
                    self.files.scheduler.wake(task)
                self.changed()

    def events(self) -> int:
        return select.EPOLLIN if self._reported() else 0

    def _reported(self) -> list[tuple[int, int]]:
        reported = []
        for fd, (file, events) in self._watched.items():
            if (now := file.events() & events) and (
                not events & select.EPOLLET or fd in self._edges
            ):
                reported.append((fd, now))
        return reported

    def poll(
        self, timeout: float | None = None, maxevents: int = -1
    ) -> list[tuple[int, int]]:
        scheduler = self.files.scheduler
        scheduler.step()
        if self.closed:
            raise ValueError("I/O operation on closed epoll object")
        until = None if timeout is None or timeout < 0 else scheduler.now + timeout
        while not (reported := self._reported()):
            left = None if until is None else until - scheduler.now
            if left is not None and left <= 0:
                return []
            self._waiting.append(scheduler.current)
            if not scheduler.block(left) and scheduler.current in self._waiting:
                self._waiting.remove(scheduler.current)
            if self.closed:
                return []
        if len(reported) > 1:
            scheduler.random.shuffle(reported)
            if maxevents > 0:
                del reported[maxevents:]
        for fd, _ in reported:
            file, events = self._watched[fd]
            self._edges.discard(fd)
            if events & select.EPOLLONESHOT:
                self._watched[fd] = file, 0
        return reported

    def close(self) -> None:
        for file, _ in self._watched.values():
            file.watchers.remove(self)
        self._watched.clear()
        super().close()


class Poll:
    """A `select.poll` of one file."""

    def __init__(self, epoll: Epoll) -> None:
        self._epoll = epoll

    def register(self, fd: int, events: int) -> None:
        self._epoll.register(fd, events)

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        try:
            return self._epoll.poll(milliseconds / 1000)
        finally:
            self._epoll.close()
