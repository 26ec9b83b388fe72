"""The load of other programs is the time of the cores without the time of the nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from placer.launcher import other_load
from placer.launcher.other_load import OtherLoad, busy_seconds
from placer.runtime.control.events import State


def test_the_load_is_what_the_nodes_did_not_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy: Iterator[float] = iter([100.0, 106.0, 114.0])
    clock = iter([0.0, 4.0, 8.0])
    monkeypatch.setattr(other_load, "busy_seconds", lambda: next(busy))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "process_time", lambda: 1.0)
    load = OtherLoad()
    assert load.cores() is None
    load.add(State("worker:0", "importing", process=1, cpu_seconds=2.0))
    assert load.cores() is None
    load.add(State("worker:1", "importing", process=2, cpu_seconds=1.0))
    load.add(State("worker:0", "done", process=1, cpu_seconds=7.0))
    # 14 seconds of the cores, of which the nodes used 5 and 1.
    assert load.cores() == 1.0


@pytest.mark.skipif(not other_load._STATES.exists(), reason="needs /proc/stat")
def test_the_cores_count_the_time_of_this_process() -> None:
    before, own = busy_seconds(), time.process_time()
    assert before is not None
    while time.process_time() < own + 0.2:
        os.getpid()
    after = busy_seconds()
    assert after is not None
    assert after > before
