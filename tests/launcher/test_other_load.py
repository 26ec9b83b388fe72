"""The load of other programs is measured on the launcher's machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from placer.launcher import other_load
from placer.launcher.other_load import OtherLoad
from placer.runtime.control.events import State


class Machine:
    """A machine whose cores and processes are busy for a fraction of the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.readings = 0
        clock = SimpleNamespace(
            monotonic=lambda: self.now, process_time=lambda: 0.25 * self.now
        )
        monkeypatch.setattr(other_load, "time", clock)
        monkeypatch.setattr(other_load, "busy_seconds", self.busy_seconds)

    def busy_seconds(self) -> float | None:
        self.readings += 1
        return 3.0 * self.now

    def run(self, load: OtherLoad, seconds: float) -> None:
        """Report two nodes, each of which uses half a core, eight times a second."""
        for _ in range(round(8 * seconds)):
            for node, process in (("worker:0", 7), ("ps:0", 8)):
                seconds_used = 0.5 * self.now
                load.add(
                    State(node, "running", process=process, cpu_seconds=seconds_used)
                )
            self.now += 0.125


def test_the_load_of_other_programs_excludes_the_nodes_and_the_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, load = Machine(monkeypatch), OtherLoad()
    machine.run(load, 4)
    assert load.cores() == pytest.approx(3.0 - 0.5 - 0.5 - 0.25)
    assert machine.readings == 8


def test_a_short_run_has_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, load = Machine(monkeypatch), OtherLoad()
    machine.run(load, 1)
    assert load.cores() is None


def test_a_system_without_counts_has_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, load = Machine(monkeypatch), OtherLoad()
    monkeypatch.setattr(other_load, "busy_seconds", lambda: None)
    machine.run(load, 4)
    assert load.cores() is None


def test_busy_seconds_grow() -> None:
    before, after = other_load.busy_seconds(), other_load.busy_seconds()
    assert before is None or (after is not None and 0 < before <= after)
