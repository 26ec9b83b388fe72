"""An asynchronous run whose nodes are killed has the bits of a replay of its order.

The replay runs without failures.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.marks import slow_but

import placer
from placer.plan.plan import read_plan
from placer.runtime.control.events import Event, Recovered, State, Step
from placer.runtime.exchange.worker_messages import MessageKind

STEPS = 45
KILLS = {10: "worker:1", 20: "ps:0", 30: "worker:0"}
"""The node to kill when a step is reported; worker:0 is the control node."""
SPECS = Path(__file__).parents[2] / "specs"
IN_ROUNDS = "digits_diloco"


class Kills(placer.Callback):
    """Kills nodes while a run trains, and collects the steps of the callbacks."""

    def __init__(self) -> None:
        self.left = dict(KILLS)
        self.pids: dict[str, int] = {}
        self.recovered: list[Recovered] = []
        self.records: list[tuple[int, bool]] = []

    def watch(self, event: Event) -> None:
        if isinstance(event, State):
            self.pids[event.node] = event.process
        elif isinstance(event, Recovered):
            self.recovered.append(event)
        elif isinstance(event, Step) and self.is_due(event.step):
            os.kill(self.pids[self.left.pop(min(self.left))], signal.SIGKILL)

    def is_due(self, step: int) -> bool:
        # Steps before a kill may be reported after it.
        has_recovered = len(self.recovered) == len(KILLS) - len(self.left)
        return has_recovered and bool(self.left) and step >= min(self.left)

    def on_step(self, record: placer.Record) -> object:
        self.records.append((record.step, record.again))
        return None


def metrics_of(lines):
    return [(line["step"], line["metrics"], line.get("eval")) for line in lines]


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def check_each_gradient_counts_once(build, order):
    """Each worker sends the gradient of each step once, and a server takes each message."""
    pushes = {e.id for e in read_plan(build).step_edges if e.is_push}
    sent, steps, taken = Counter(), Counter(), Counter()
    for file in order.glob("*.jsonl"):
        _, *events, _ = lines_of(file)
        node = file.stem.replace("-", ":")
        for kind, edge, *rest in events:
            if kind == "send":
                sent[edge, node] += 1
                if rest[0] == MessageKind.PUSH:
                    steps[edge, node] += rest[1]
            elif kind == "take":
                taken[rest[0], rest[1]] += 1
    assert {edge for edge, _ in taken} <= pushes
    assert taken == {key: sent[key] for key in taken}
    assert {*steps.values()} <= {STEPS}


@pytest.mark.parametrize(
    "spec",
    slow_but(
        ["digits_async"],
        ["digits_async", "digits_half_async", "digits_geo", IN_ROUNDS, "digits_backup"],
    ),
)
def test_a_replay_without_kills_has_the_same_bits(tmp_path, spec):
    build, order, kills = tmp_path / "build", tmp_path / "order", Kills()
    placer.compile(SPECS / f"{spec}.yaml", build)
    result = placer.launch(
        build,
        steps=STEPS,
        restarts=3,
        checkpoint=tmp_path / "saved",
        checkpoint_every=7,
        record_order=order,
        history=tmp_path / "history.jsonl",
        watch=kills.watch,
        callbacks=[kills],
    )
    assert [each.node for each in result.restarts] == [*KILLS.values()]
    check_each_gradient_counts_once(build, order)

    replayed = placer.launch(build, in_process=True, steps=STEPS, replay_order=order)
    for name, array in replayed.params.items():
        assert np.array_equal(array, result.params[name]), name
    expected = metrics_of(replayed.history)
    assert [step for step, *_ in expected] == [*range(1, STEPS + 1)]
    for lines in (
        result.history,
        lines_of(tmp_path / "history.jsonl"),
        lines_of(result.folder / "history.jsonl"),
    ):
        assert metrics_of(lines) == expected
    assert (result.metrics, result.eval) == (replayed.metrics, replayed.eval)
    assert result.untrained_rows == replayed.untrained_rows

    # Callbacks receive each step once, or see it again with other metrics.
    first = [step for step, again in kills.records if not again]
    assert first == [*range(1, STEPS + 1)]
    again = sum(again for _, again in kills.records)
    repeated = sum(each.again for each in kills.recovered)
    assert again == (0 if spec == IN_ROUNDS else repeated)
    for restart, event in zip(result.restarts, kills.recovered, strict=True):
        assert restart.workers == event.workers
        assert set(event.workers) >= {"worker:0", "worker:1"}
        assert event.replaces == (spec != IN_ROUNDS)
