"""Runs with `--elastic`: a node does not come back, and the run goes on with fewer."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from support.checkpointed import build
from support.faulty_runs import Seen, small_spec

import placer
from placer.errors import RunError
from placer.launcher import processes
from placer.launcher.node_process import start_node
from placer.plan.plan import read_plan
from placer.report.run_files import read_run
from placer.runtime.control.events import Event, FewerNodes, Recovered, State

BROKEN = (sys.executable, "-c", "raise SystemExit(3)")
FROZEN = (sys.executable, "-c", "import time; time.sleep(60)")
"""Processes in the place of a node's, which do not join the others."""


@dataclass
class Loss(Seen):
    """Kills a node after a step, and keeps it from coming back.

    Attributes:
        node: the node.
        command: the process that is started in its place.
        comes_back: whether a node of this name starts again in the next build.
    """

    node: str
    command: Sequence[str] = BROKEN
    comes_back: bool = False
    is_lost: bool = False
    events: list[Event] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Seen.__init__(self)

    def on_step(self, record: placer.Record) -> object:
        if record.step == 6:
            self.is_lost = True
            os.kill(self.pids[self.node], signal.SIGKILL)
        return super().on_step(record)

    def watch(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, State):
            self.pids[event.node] = event.process
        elif isinstance(event, FewerNodes) and self.comes_back:
            self.is_lost = False

    def start(self, node: str, command: Sequence[str], *more, **options):
        if self.is_lost and node == self.node:
            command, options["server"] = self.command, None
        return start_node(node, command, *more, **options)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A build of three workers and two servers."""
    model = small_spec()
    model["nodes"]["worker"]["count"] = 3
    model["data"]["train"]["batch"] = 6
    model["data"]["eval"]["batch"] = 12
    return build(tmp_path_factory.mktemp("three"), model, "three")


@pytest.fixture(scope="module")
def undisturbed(three):
    return placer.launch(three, in_process=True)


def run(three: Path, loss: Loss, tmp_path: Path, **options) -> placer.Result:
    chosen = {
        "restarts": 1,
        "checkpoint": tmp_path / "checkpoints",
        "checkpoint_every": 2,
        "callbacks": [loss],
        "watch": loss.watch,
        "logs": tmp_path / "logs",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "start_node", loss.start)
        return placer.launch(three, **chosen | options)


def check(result: placer.Result, undisturbed: placer.Result, loss: Loss) -> None:
    """Check that a run differs by rounding only, and that each step was reported once."""
    assert result.steps == undisturbed.steps == 16
    assert loss.steps == [line["step"] for line in result.history] == [*range(1, 17)]
    assert loss.evaluations == [4, 8, 12, 16]
    for name, array in undisturbed.params.items():
        np.testing.assert_allclose(result.params[name], array, rtol=0, atol=1e-5)
    for line, expected in zip(result.history, undisturbed.history, strict=True):
        assert line["metrics"] == pytest.approx(expected["metrics"], rel=1e-4)


def test_a_run_goes_on_with_the_workers_that_are_left(three, undisturbed, tmp_path):
    loss = Loss("worker:2")
    result = run(three, loss, tmp_path, elastic="worker=2")
    check(result, undisturbed, loss)
    (fewer,), (recovered,) = loss.of(FewerNodes), loss.of(Recovered)
    assert re.fullmatch(
        "worker:2 has failed 2 times before it joined: the run goes on with 2 of 3"
        r" workers after step \d+; results differ from those of 3 workers by rounding",
        fewer.message,
    )
    assert [*fewer.programs] == ["worker:0", "worker:1", "ps:0", "ps:1"]
    assert recovered.step in range(2, 16, 2)
    (restart,) = result.restarts
    assert restart.what.startswith("worker:2 was killed by SIGKILL")
    assert restart.what.endswith("; the run goes on with 2 of 3 workers")
    kept = read_run(result.folder)
    assert kept.settings["nodes.worker"] == 2
    assert kept.build == result.folder / "build-2" == Path(fewer.build)
    assert read_plan(kept.build).workers == 2
    assert "2 of 3 workers" in (result.folder / "events.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node", "least", "text"),
    [
        ("worker:0", {"worker": 2}, "2 of 3 workers"),
        ("ps:0", {"ps": 1}, "1 of 2 servers"),
    ],
)
def test_the_control_node_and_servers_may_be_lost(
    three, undisturbed, tmp_path, node, least, text
):
    loss = Loss(node, comes_back=True)
    result = run(three, loss, tmp_path, elastic=least)
    check(result, undisturbed, loss)
    assert result.restarts[0].what.endswith(f"; the run goes on with {text}")


@pytest.mark.slow
def test_a_run_may_lose_nodes_twice(three, undisturbed, tmp_path):
    """The second loss comes before the run has recovered from the first one."""
    loss = Loss("worker:1")
    result = run(three, loss, tmp_path, elastic="worker=1")
    check(result, undisturbed, loss)
    texts = [event.message for event in loss.of(FewerNodes)]
    assert ["2 of 3" in texts[0], "1 of 2" in texts[1]] == [True, True]
    assert len(loss.of(Recovered)) == 1


@pytest.mark.slow
def test_a_run_ends_without_enough_nodes(three, tmp_path):
    loss = Loss("worker:1")
    with pytest.raises(RunError) as error:
        run(three, loss, tmp_path, elastic="worker=2")
    text = str(error.value)
    assert "it has failed 2 times before it joined" in text
    assert "with fewer nodes: 1 of 2 workers are left, and it needs 2" in text
    assert len(loss.of(FewerNodes)) == 1
    assert "continue with" in text


@pytest.mark.slow
def test_a_node_that_does_not_join_is_given_up(three, undisturbed, tmp_path):
    loss = Loss("worker:2", FROZEN)
    result = run(three, loss, tmp_path, elastic="worker=2", join_timeout=4)
    check(result, undisturbed, loss)
    (fewer,) = loss.of(FewerNodes)
    assert fewer.message.startswith("worker:2 has not come back within 4 s: the run")


@pytest.mark.slow
def test_a_stop_of_a_callback_survives_a_loss(three, undisturbed, tmp_path):
    class Stop(Loss):
        def on_step(self, record: placer.Record) -> object:
            super().on_step(record)
            return placer.STOP if record.step == 6 else None

    loss = Stop("worker:2")
    result = run(three, loss, tmp_path, elastic="worker=2")
    assert 6 <= result.steps < 16
    assert loss.steps == [*range(1, result.steps + 1)]
