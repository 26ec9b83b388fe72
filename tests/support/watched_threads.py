"""Watches the threads of runs and their locks: which threads there are, which of them are
left, and in which order they take locks."""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest

PAGE = Path(__file__).parents[2] / "docs/about/architecture.md"
NODES = r"[a-z]\w*:[\d.]+(, [a-z]\w*:[\d.]+)*"
STAYS = "stays with the process"
"""What the page says of a thread that no run joins."""
LAST = (
    "placer.launcher.run_record:",
    "placer.runtime.callbacks.event_queue:",
    "placer.runtime.timeline.recorder:",
)
"""Where locks are created that are always the last: code of all packages reports events, and
waits at any lock are recorded."""


@dataclass(frozen=True)
class ListedThread:
    """A row of the table of threads on the page: the pattern of its names, and its end."""

    pattern: re.Pattern[str]
    end: str


def listed_threads() -> list[ListedThread]:
    """Return the threads on the page. A word in capitals stands for one or more nodes."""
    text = PAGE.read_text(encoding="utf-8")
    rows = text[text.index("| thread | owner |") :].split("\n\n")[0].splitlines()[2:]
    listed = []
    for row in rows:
        names, *_, end = (cell.strip() for cell in row.split("|")[1:-1])
        for name in re.findall(r"`([^`]+)`", names):
            pattern = re.sub(r"\b[A-Z]+\b", lambda _: NODES, name)
            listed.append(ListedThread(re.compile(rf"{pattern}(_\d+)?"), end))
    return listed


@dataclass
class LockOrder:
    """The order in which threads take the locks that placer creates.

    A lock is known by what creates it, see `_creator`. `edges` are pairs of locks: while a thread
    held the first, it waited for the second, once at the place that is their value.
    """

    edges: dict[tuple[str, str], str] = field(default_factory=dict)
    _local: threading.local = field(default_factory=threading.local)

    @property
    def held(self) -> list[RecordedLock]:
        """The locks that this thread holds, each as often as it was taken."""
        if not hasattr(self._local, "held"):
            self._local.held = []
        return self._local.held

    def waits_for(self, lock: RecordedLock) -> None:
        """Note that this thread waits for a lock, which it may hold already."""
        held = self.held
        if held and lock not in held:
            for each in held:
                if (each.site, lock.site) not in self.edges:
                    at = "".join(traceback.format_stack(sys._getframe(3), 8))
                    self.edges[each.site, lock.site] = at

    def cycle(self) -> list[str]:
        """Return the locks of a cycle, each taken while the one before it was held; an empty
        list if all threads take locks in one order."""
        after: dict[str, list[str]] = {}
        for first, second in self.edges:
            after.setdefault(first, []).append(second)
        done: set[str] = set()

        def find(path: list[str]) -> list[str]:
            for following in after.get(path[-1], ()):
                if following in path:
                    return [*path[path.index(following) :], following]
                if following not in done and (found := find([*path, following])):
                    return found
            done.add(path[-1])
            return []

        return next(filter(None, (find([each]) for each in after)), [])

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the order of the locks that modules of placer create meanwhile."""
        lock, reentrant, condition = (
            threading.Lock,
            threading.RLock,
            threading.Condition,
        )

        def make(kind: Callable[[], Any]) -> Callable[[], Any]:
            def create() -> Any:
                site = _creator(2)
                return RecordedLock(self, kind(), site) if site else kind()

            return create

        def create_condition(own: Any = None) -> threading.Condition:
            site = _creator(2)
            if own is None and site:
                own = RecordedLock(self, reentrant(), site)
            return condition(own)

        with (
            patch.object(threading, "Lock", make(lock)),
            patch.object(threading, "RLock", make(reentrant)),
            patch.object(threading, "Condition", create_condition),
        ):
            yield


class RecordedLock:
    """A lock whose order with others is recorded."""

    def __init__(self, order: LockOrder, lock: Any, site: str) -> None:
        self.order, self.lock, self.site = order, lock, site

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:
            self.order.waits_for(self)
        is_taken = self.lock.acquire(blocking, timeout)
        if is_taken:
            self.order.held.append(self)
        return is_taken

    def release(self) -> None:
        self.lock.release()
        held = self.order.held
        if self in held:  # else another thread has taken it
            held.remove(self)

    def locked(self) -> bool:
        return self.lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # For a condition over a lock that can be taken again.

    def _is_owned(self) -> bool:
        return self in self.order.held

    def _release_save(self) -> int:
        count = self.order.held.count(self)
        for _ in range(count):
            self.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        for _ in range(count):
            self.acquire()


def _creator(depth: int) -> str:
    """Return the line that creates a lock of placer, and the type of the object that it is
    for; nothing if it is another's. Of threads with an owner, return those of the owner."""
    frame = sys._getframe(depth)
    if not _module(frame).startswith("placer."):
        return ""
    while _module(frame) in ("placer.system.owned_threads", "placer.system.worker"):
        assert frame.f_back is not None
        frame = frame.f_back
    own = frame.f_locals.get("self")
    kind = "" if own is None else f" of {type(own).__name__}"
    return f"{_module(frame)}:{frame.f_lineno}{kind}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


@cache
def _ranks() -> dict[str, dict[str, int]]:
    """Return the rank of each package in the layers of `.importlinter` that it is in, from
    the top."""
    parser = ConfigParser()
    parser.read(PAGE.parents[2] / ".importlinter")
    return {
        section["containers"].strip(): {
            name.strip(): rank
            for rank, line in enumerate(section["layers"].strip().splitlines())
            for name in line.split("|")
        }
        for section in parser.values()
        if section.get("type") == "layers"
    }


def climbs(held: str, taken: str) -> bool:
    """Whether a lock that is taken is of a higher package than one that is held; or one is
    taken at all while one of the last is held, which itself may be taken anywhere."""
    if held.startswith(LAST) or taken.startswith(LAST):
        return held.startswith(LAST)
    for container, ranks in _ranks().items():
        names = [each[len(container) + 1 :].split(".")[0] for each in (held, taken)]
        inside = all(each.startswith(f"{container}.") for each in (held, taken))
        if inside and names[0] != names[1]:
            return ranks[names[1].split(":")[0]] < ranks[names[0].split(":")[0]]
    return False


@contextmanager
def watched_threads() -> Iterator[LockOrder]:
    """Check that all threads that placer begins are on the page, that none of them is left
    but those that stay with the process, and that they take locks in one order, from higher
    packages to lower ones."""
    begun: dict[threading.Thread, str] = {}
    start = threading.Thread.start

    def noted_start(thread: threading.Thread) -> None:
        if thread.name.startswith(("placer ", "read ahead")):
            begun[thread] = os.environ.get("PYTEST_CURRENT_TEST", "")
        start(thread)

    order = LockOrder()
    with patch.object(threading.Thread, "start", noted_start), order.recorded():
        yield order
    listed = listed_threads()

    def row(name: str) -> ListedThread | None:
        return next((each for each in listed if each.pattern.fullmatch(name)), None)

    unlisted = {thread.name for thread in begun if row(thread.name) is None}
    assert not unlisted, f"not in the table of threads of {PAGE}: {unlisted}"
    left = {
        thread.name: test
        for thread, test in begun.items()
        if thread.is_alive() and STAYS not in row(thread.name).end
    }
    assert not left, f"no owner has joined these threads: {left}"
    upward = [edge for edge in order.edges if climbs(*edge)]
    assert not upward, f"locks taken against the rule on {PAGE}: {upward}"
    if cycle := order.cycle():
        places = "\n\n".join(
            f"{second} while {first} is held:\n{order.edges[first, second]}"
            for first, second in pairwise(cycle)
        )
        pytest.fail(f"threads take locks in more than one order: {cycle}\n\n{places}")
