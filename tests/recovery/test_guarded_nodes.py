"""Nodes that `placer run --restarts` starts again, without a launcher."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.faulty_runs import Fault, Run

from placer.channel.ports import free_endpoints
from placer.plan.plan import read_plan
from placer.runtime.control.events import Event, Left, Step, is_cut, read_event
from placer.runtime.control.launcher_orders import (
    STEP_CALLED,
    STOP_ORDER,
    OrderReader,
    address_order,
)
from placer.runtime.process.interpreter import interpreter

LIMIT = 60.0


@dataclass
class Guarded:
    """The guards of all nodes of a build.

    Attributes:
        processes: the guard of each node.
        folder: the folder of their output.
    """

    processes: dict[str, subprocess.Popen[bytes]]
    folder: Path

    def wait(self) -> dict[str, int]:
        """Return the exit status of each guard."""
        until = time.monotonic() + LIMIT
        return {
            node: process.wait(max(0.1, until - time.monotonic()))
            for node, process in self.processes.items()
        }

    def events(self, node: str) -> list[Event]:
        lines = (self.folder / f"{node}.jsonl").read_bytes().splitlines()
        return [read_event(node, line) for line in lines if not is_cut(line)]

    def said(self, node: str) -> str:
        return (self.folder / f"{node}.err").read_text()


@pytest.fixture
def guarded(small, tmp_path):
    """Return a function that starts the guards of all nodes, with faults."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*faults: Fault, restarts: int = 3) -> Guarded:
        small.prepare(faults)
        files = small.files
        nodes = [*read_plan(small.build).processes]
        listed = ",".join(f"{k}={v}" for k, v in free_endpoints(nodes).items())
        given = {
            "--endpoints": listed,
            "--restarts": restarts,
            "--checkpoint": files / "checkpoints",
            "--checkpoint-every": 1,
            "--save-params": files / "params",
            "--history": files / "history",
        }
        words = [str(word) for pair in given.items() for word in pair]
        processes = {}
        for node in nodes:
            events = ["--events", str(tmp_path / f"{node}.jsonl")]
            command = [*interpreter(), "run", str(small.build), "--node", node]
            with (tmp_path / f"{node}.err").open("wb") as output:
                process = subprocess.Popen(
                    [*command, *events, *words], stderr=output, stdout=output
                )
            running.append(process)
            processes[node] = process
        return Guarded(processes, tmp_path)

    yield start
    for process in running:
        process.kill()
        process.wait()


def check_files(small, whole) -> None:
    """Check the files of a run against those of a run that is left alone."""
    run = Run()
    small._collect(run)
    assert run.params == whole.params != b""
    assert run.history == whole.history
    assert not run.undone


def test_guards_start_killed_nodes_again_and_the_result_has_the_same_bits(
    small, whole, guarded
):
    # The control node, and a server that fails in the attempt after it.
    run = guarded(Fault("worker:0", "step 8, call 2"), Fault("ps:1", "step 12, call 1"))
    assert set(run.wait().values()) == {0}
    check_files(small, whole)
    left = [each for each in run.events("ps:1") if isinstance(each, Left)]
    assert [(each.attempt, each.root) for each in left[:2]] == [(1, False), (2, True)]
    assert left[1].cause.what == "was killed by SIGKILL"
    assert "ps:1 was killed by SIGKILL; it is started again" in run.said("ps:1")
    assert "24 steps" in run.said("worker:0")
    # Without a launcher, each attempt reports its steps.
    steps = [each.step for each in run.events("worker:0") if isinstance(each, Step)]
    assert set(steps) == set(range(1, 25))


@pytest.mark.slow
def test_a_failure_that_ends_the_run_is_not_repeated(guarded):
    run = guarded(Fault("worker:1", "state compiling", "raise wrong shapes"))
    assert set(run.wait().values()) == {1}
    assert "ValueError: wrong shapes" in run.said("worker:1")
    assert "started again" not in run.said("worker:1")


@pytest.mark.slow
def test_a_guard_gives_up_a_node_that_never_joins(guarded):
    always = Fault("ps:0", "state connecting", always=True)
    run = guarded(always, restarts=1)
    guard = run.processes["ps:0"]
    assert guard.wait(LIMIT) == 128 + signal.SIGKILL
    assert "it has ended 2 times before it joined" in run.said("ps:0")
    assert run.said("ps:0").count("started again") == 1


@pytest.mark.slow
def test_a_signal_to_a_guard_stops_the_run_even_if_the_node_fails_then(small, guarded):
    run = guarded(Fault("ps:1", "step 6, call 1", "freeze 1.5"))
    guard = run.processes["ps:1"]
    points = small.folder / "points"
    wait_for(lambda: "ps:1\tstep 6, call 1" in points.read_text())
    guard.send_signal(signal.SIGTERM)
    assert run.wait() == {
        "worker:0": 0,
        "worker:1": 0,
        "ps:0": 0,
        "ps:1": 128 + signal.SIGTERM,
    }


@pytest.mark.slow
def test_a_node_ends_with_its_guard(guarded):
    run = guarded(Fault("worker:1", "step 6, call 1", "freeze 600"))
    guard = run.processes["worker:1"]
    wait_for(lambda: _children(guard.pid))
    (child,) = _children(guard.pid)
    guard.kill()
    guard.wait()
    wait_for(lambda: not is_running(child))


def wait_for(condition) -> None:
    until = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [*map(int, found)]


def test_orders_are_read_in_any_parts():
    order = address_order("ps:0", "10.0.0.9:4711")
    data = STEP_CALLED * 2 + order + STOP_ORDER + STEP_CALLED
    for cut in range(len(data) + 1):
        reader = OrderReader()
        parts = [reader.read(data[:cut]), reader.read(data[cut:])]
        assert sum(part.steps for part in parts) == 3
        assert any(part.stops for part in parts)
        moved = {k: v for part in parts for k, v in part.addresses.items()}
        assert moved == {"ps:0": "10.0.0.9:4711"}
