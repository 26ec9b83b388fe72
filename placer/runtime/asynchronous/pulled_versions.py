"""A worker's end of a table that a server updates: it uses the newest parameters that the
server has sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from placer.channel.interface import Array
from placer.runtime.asynchronous.communicator import Communicator
from placer.runtime.asynchronous.recorded_order import USE


@dataclass(frozen=True, slots=True)
class _Version:
    """Parameters as a server has sent them: steps of all workers up to `horizon` are
    applied."""

    number: int
    horizon: int
    arrays: Sequence[Array]


class PulledVersions(Communicator):
    """A worker's end of one table of a server; `pull` is called by the compute thread.

    `order` also has which version each step uses.
    """

    def __init__(self, *arguments: Any) -> None:
        self._versions: dict[int, _Version] = {}  # from the one in use on
        super().__init__(*arguments)

    def pull(self, step: int) -> Sequence[Array]:
        """Return the newest parameters, once the step may begin."""
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
        """Return the newest version, if a step may use it; else ask for one."""
        newest = self._versions[max(self._versions)] if self._versions else None
        known = None if newest is None else newest.horizon
        return newest if self._may_use(self._horizon_of(step), known) else None

    def _take(self, answers: Sequence[Sequence[Array]]) -> int:
        ((numbers, *arrays),) = answers
        version, horizon, *_ = (int(number) for number in numbers)
        self._versions[version] = _Version(version, horizon, arrays)
        return horizon

    def _end_drain(self) -> None:
        # What the next step uses comes after what follows the drain.
        self._versions.clear()
