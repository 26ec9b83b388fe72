"""The clocks of machines, aligned to that of the control node.

Processes of one machine share its monotonic clock. The offset of another machine is
measured by round trips: if a node answers a question of the control node with its time,
that is at most half of a round trip away from the middle between question and answer. The
shortest of several round trips counts, as in NTP (RFC 5905). Clocks also drift apart, by up
to about 100 us in a second: with a measurement before and one after the steps, the offset
between them is linear in time.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from placer.channel.interface import Array, Channel, Key
from placer.plan.plan import Plan
from placer.runtime.control.barrier import CLOCK, version_error
from placer.runtime.timeline.recorder import now

ROUNDS: Final = 16
"""Round trips of a measurement."""


def clock_name() -> str:
    """Return a name that two processes have in common if they share their clock."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        times = "/proc/self/ns/time"  # a time namespace has a clock of its own
        space = os.readlink(times) if os.path.lexists(times) else ""
        return f"{boot.strip()} {space}"
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Measurement:
    """An offset, in nanoseconds.

    Attributes:
        at: the time on the node.
        offset: what is added to that for the time on the control node.
        round_trip: how long the round trip took, on the control node.
    """

    at: int
    offset: int
    round_trip: int


def measure(
    ask: Callable[[], int], clock: Callable[[], int] = now, rounds: int = ROUNDS
) -> Measurement:
    """Return the measurement by the shortest of several round trips; `ask` returns the
    time on a node."""
    found = []
    for _ in range(rounds):
        before = clock()
        at = ask()
        after = clock()
        offset = (before + after) // 2 - at
        found.append(Measurement(at, offset, after - before))
    return min(found, key=lambda each: each.round_trip)


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a node: one measurement, two in the order of time, or none if it is
    that of the control node."""

    measurements: tuple[Measurement, ...] = ()

    @property
    def uncertainty(self) -> int:
        """By how many nanoseconds an aligned time between the measurements may be
        wrong."""
        return max((m.round_trip // 2 for m in self.measurements), default=0)

    def align(self, times: Array) -> Array:
        """Return times of the node, int64 nanoseconds, on the control node's clock.

        Their order stays as it is.
        """
        if not self.measurements:
            return times
        first, last = self.measurements[0], self.measurements[-1]
        if last.at <= first.at:
            return times + first.offset
        slope = (last.offset - first.offset) / (last.at - first.at)
        drift = np.floor((times - first.at) * slope).astype(np.int64)
        aligned: Array = times + first.offset + drift
        return aligned


def measure_clocks(
    plan: Plan, channel: Channel, names: Mapping[str, str], number: int
) -> dict[str, Measurement]:
    """Measure the clocks of all nodes that do not share that of the control node.

    All nodes call this at the same point. `names` are those of the nodes' clocks,
    `number` is that of the measurement. Returns the measurements on the control node.
    """
    control = plan.control
    others = [node for node, name in names.items() if name != names[control]]
    if channel.node == control:
        return {node: measure(_Question(channel, node, number)) for node in others}
    if channel.node in others:
        for i in range(ROUNDS):
            channel.receive(control, Key(CLOCK, number, i))
            time = np.array([now()], np.int64)
            channel.send(control, Key(CLOCK, number, i), [time])
    return {}


class _Question:
    """Asks a node for its time."""

    def __init__(self, channel: Channel, node: str, number: int) -> None:
        self._channel, self._node, self._number = channel, node, number
        self._asked = 0

    def __call__(self) -> int:
        key = Key(CLOCK, self._number, self._asked)
        self._asked += 1
        self._channel.send(self._node, key, [])
        arrays = self._channel.receive(self._node, key)
        if len(arrays) != 1 or arrays[0].dtype != np.int64 or arrays[0].size != 1:
            raise version_error(self._node)
        return int(arrays[0].reshape(())[()])
