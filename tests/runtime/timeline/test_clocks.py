"""Clocks of machines are aligned, within the round trips by which they are measured."""

from __future__ import annotations

import threading
import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import placer
from placer.channel.in_process import memory_channels
from placer.runtime.timeline import clocks
from placer.runtime.timeline.clocks import Clock, Measurement, clock_name, measure
from placer.system.resources import find_file

SECOND = 10**9


class Machine:
    """A clock with an offset, in nanoseconds, and a drift; and the way to it."""

    def __init__(self, offset, drift, delays):
        self.time, self.offset, self.drift = 10 * SECOND, offset, drift
        self.delays = iter(delays)

    def local(self, true):
        return round(true * (1 + self.drift)) + self.offset

    def now(self):
        return self.time

    def ask(self):
        self.time += next(self.delays)
        answer = self.local(self.time)
        self.time += next(self.delays)
        return answer


delays = st.lists(st.integers(0, 5_000_000), min_size=32, max_size=32)


@given(
    offset=st.integers(-(10**18), 10**18),
    drift=st.floats(-1e-4, 1e-4),
    before=delays,
    after=delays,
    minutes=st.integers(1, 10_000),
    at=st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_aligned_times_are_within_the_uncertainty_and_in_order(
    offset, drift, before, after, minutes, at
):
    machine = Machine(offset, drift, [*before, *after])
    first = measure(machine.ask, machine.now)
    begin = machine.time
    machine.time += minutes * 60 * SECOND
    end = machine.time
    last = measure(machine.ask, machine.now)
    clock = Clock((first, last))
    true = np.sort([begin + round(each * (end - begin)) for each in at])
    local = np.array([machine.local(int(each)) for each in true])
    aligned = clock.align(local)
    # What drifts during a round trip, and the rounding of times, is beyond it.
    assert (abs(aligned - true) <= clock.uncertainty + 2_000).all()
    assert (np.diff(aligned) >= 0).all()


def test_with_one_measurement_the_offset_stays():
    clock = Clock((Measurement(at=5, offset=-100, round_trip=40),))
    assert clock.align(np.array([3, 9])).tolist() == [-97, -91]
    assert clock.uncertainty == 20


def test_the_shortest_round_trip_counts():
    machine = Machine(700, 0.0, [9000, 1000, 30, 30, 1000, 9000])
    found = measure(machine.ask, machine.now, rounds=3)
    assert (found.offset, found.round_trip) == (-700, 60)


def test_the_clock_of_a_node_is_measured_over_the_channel(tmp_path, monkeypatch):
    plan = placer.compile(find_file("specs/two_workers.yaml"), tmp_path / "build")
    names = [node.name for node in plan.nodes]
    channels = memory_channels(names, deadline=10)
    ahead = 3600 * SECOND
    monkeypatch.setattr(clocks, "now", lambda: time.monotonic_ns() + ahead)
    of_clocks = dict.fromkeys(names, "one") | {names[-1]: "another"}

    def answer():
        clocks.measure_clocks(plan, channels[names[-1]], of_clocks, 0)

    thread = threading.Thread(target=answer)
    thread.start()
    found = clocks.measure_clocks(plan, channels[plan.control], of_clocks, 0)
    thread.join()
    assert list(found) == [names[-1]]
    measurement = found[names[-1]]
    assert abs(measurement.offset + ahead) <= measurement.round_trip // 2 + 1


def test_processes_of_a_machine_share_a_clock():
    assert clock_name() == clock_name()
