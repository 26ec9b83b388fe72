"""A worker's side of an asynchronous table that a server updates.

Each step uses the newest parameters received from the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from placer.channel.interface import Array
from placer.runtime.asynchronous.communicator import Communicator
from placer.runtime.asynchronous.recorded_order import USE


@dataclass(frozen=True, slots=True)
class _Version:
    """Parameters from a server, with all workers' steps up to `horizon` applied."""

    number: int
    horizon: int
    arrays: Sequence[Array]


class PulledVersions(Communicator):
    """A worker's side of one table of a server; the compute thread calls `pull`.

    `order` also records the version that each step uses.
    """

    def __init__(self, *arguments: Any) -> None:
        self._versions: dict[int, _Version] = {}  # the version in use and newer ones
        super().__init__(*arguments)

    def pull(self, step: int) -> Sequence[Array]:
        with self._changed:
            if self._order.replays:
                recorded, number = self._order.next(USE, self._pull.id)
                assert recorded == step, (recorded, step)
                while (version := self._versions.get(number)) is None:
                    self._wanted = 0
                    self._wait()
            else:
                while (version := self._usable(step)) is None:
                    self._wait()
            self._used = (version.number,)
            for number in [n for n in self._versions if n < version.number]:
                del self._versions[number]
        self._order.add(USE, self._pull.id, step, version.number)
        return version.arrays

    def _usable(self, step: int) -> _Version | None:
        """Return the newest version if the step may use it; otherwise request a newer one."""
        newest = self._versions[max(self._versions)] if self._versions else None
        known = None if newest is None else newest.horizon
        return newest if self._may_use(self._horizon_of(step), known) else None

    def _take(self, answers: Sequence[Sequence[Array]]) -> int:
        ((numbers, *arrays),) = answers
        version, horizon, *_ = (int(number) for number in numbers)
        self._versions[version] = _Version(version, horizon, arrays)
        return horizon

    def _end_drain(self) -> None:
        # The next step must use parameters from after the drain.
        self._versions.clear()
