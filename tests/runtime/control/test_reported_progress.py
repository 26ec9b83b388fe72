"""What the control node reports of a run: the steps to come, then each step with its
time and its learning rates."""

from __future__ import annotations

import numpy as np
import pytest
from support.small_models import two_layers

from placer.compiler.driver import compile
from placer.runtime.control.events import (
    BEFORE_FIRST_STEP,
    LOADING,
    UPDATES,
    Event,
    Start,
    State,
    Step,
)
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

OPTIMIZERS = """
    - {op: adam, match: "h.*", learning_rate: {linear: {init: 0.5, end: 0.1, steps: 4}}}
    - {op: sgd, learning_rate: 0.25}
"""


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    folder = tmp_path_factory.mktemp("small")
    draw = np.random.default_rng(1).normal
    rows = {"x": draw(size=(24, 16)), "y": draw(size=(24, 4))}
    np.savez(folder / "rows.npz", **{k: v.astype(np.float32) for k, v in rows.items()})
    spec = two_layers(optimizer=OPTIMIZERS).replace(
        "graph:\n", '  eval: {source: "npz:rows.npz", batch: 8}\ngraph:\n'
    )
    (folder / "small.yaml").write_text(spec)
    compile(folder / "small.yaml", folder / "build")
    seen: list[Event] = []
    run_in_threads(folder / "build", Options(steps=5), watch=seen.append)
    return seen


def test_the_steps_to_come_are_reported_before_the_first(events: list[Event]) -> None:
    of_run = [event for event in events if isinstance(event, Start | Step)]
    assert of_run[0] == Start(
        first_step=1,
        last_step=5,
        steps_per_epoch=3,
        evaluation_every=3,
        rows=8,
        evaluation_rows=24,
    )
    assert [step.step for step in of_run[1:]] == [1, 2, 3, 4, 5]


def test_each_step_has_its_time_and_that_of_its_evaluation(
    events: list[Event],
) -> None:
    steps = [event for event in events if isinstance(event, Step)]
    ends = [0.0, *(step.seconds + step.evaluation_seconds for step in steps)]
    for step, end_of_last in zip(steps, ends, strict=False):
        assert step.seconds > end_of_last
    assert [step.step for step in steps if step.evaluation_seconds > 0] == [3, 5]


def test_each_step_has_the_learning_rates_of_its_updates(events: list[Event]) -> None:
    rates = [event.learning_rates for event in events if isinstance(event, Step)]
    assert [list(each) for each in rates] == [["adam", "sgd"]] * 5
    assert [each["adam"] for each in rates] == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1])
    assert {each["sgd"] for each in rates} == {0.25}


def test_a_node_passes_all_states_before_its_first_step(events: list[Event]) -> None:
    states = [
        event.state
        for event in events
        if isinstance(event, State) and event.node == "worker:0"
    ]
    others = (UPDATES, LOADING)  # it has no sparse tables and does not resume
    expected = [state for state in BEFORE_FIRST_STEP[1:] if state not in others]
    assert states[: states.index("running")] == expected
