"""Aligns the clocks of all machines to the clock of the control node.

Processes on one machine share its monotonic clock. The offset of another machine is measured
with round trips, as in NTP (RFC 5905). The control node asks for a node's time and assumes
that the answer belongs to the middle of the round trip. The error is at most half the round
trip, so the shortest of several round trips is used. Clocks also drift by up to about 100 us
per second. The offset is therefore measured before and after the steps and interpolated
linearly.
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
"""The number of round trips of a measurement."""


def clock_name() -> str:
    """Return a name for this process's clock. Processes with the same clock share it."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        times = "/proc/self/ns/time"  # each time namespace has a separate clock
        space = os.readlink(times) if os.path.lexists(times) else ""
        return f"{boot.strip()} {space}"
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured offset between two clocks. All values are nanoseconds.

    Attributes:
        at: the time on the node's clock.
        offset: the control node's time minus the node's time.
        round_trip: the duration of the round trip on the control node's clock.
    """

    at: int
    offset: int
    round_trip: int


def measure(
    ask: Callable[[], int], clock: Callable[[], int] = now, rounds: int = ROUNDS
) -> Measurement:
    """Measure a node's clock with the shortest of several round trips. `ask` returns the
    clock's time."""
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
    """The clock of a node: one or two measurements in the order of time.

    Without measurements, the node shares the clock of the control node.
    """

    measurements: tuple[Measurement, ...] = ()

    @property
    def uncertainty(self) -> int:
        """The largest error, in nanoseconds, of an aligned time between the measurements."""
        return max((m.round_trip // 2 for m in self.measurements), default=0)

    def align(self, times: Array) -> Array:
        """Convert times of the node, int64 nanoseconds, to the control node's clock.

        The order of the times is preserved.
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
    """Measure the clocks of all nodes that do not share the control node's clock.

    All nodes call this at the same point. `names` are the names of the nodes' clocks. Returns
    the measurements on the control node, and {} on other nodes.
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
