"""The steps of a run, and the evaluations between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from placer.plan.settings.evaluation_and_stopping import Evaluating
from placer.plan.settings.run import TrainSettings
from placer.readers import Order
from placer.runtime.batches.batches import Batches
from placer.runtime.batches.passes import Passes
from placer.runtime.training_loop.steps import Steps, steps_of

BATCHES = Batches(Order(10, 4, False, 0, "keep"), None)
"""Three steps of an epoch, the last one with two rows."""


def steps(
    every: str | int, *, evaluates: bool = True, last: int | None = None
) -> Steps:
    train = TrainSettings(minimize="loss", metrics=[], epochs=3, eval=Evaluating(every))
    plan = SimpleNamespace(
        settings=SimpleNamespace(train=train), train=SimpleNamespace(stream=None)
    )
    options = SimpleNamespace(steps=last)
    execution = cast(Any, SimpleNamespace(plan=plan, options=options))
    batches = BATCHES.until(last, epochs=3)
    return steps_of(execution, batches, BATCHES if evaluates else None)


@pytest.mark.parametrize(
    ("every", "last", "evaluated"),
    [
        ("epoch", None, [3, 6, 9]),
        (4, None, [4, 8, 9]),
        (4, 7, [4, 7]),
    ],
)
def test_an_evaluation_follows_at_its_interval_and_after_the_last_step(
    every: str | int, last: int | None, evaluated: list[int]
) -> None:
    run = steps(every, last=last)
    assert run.total is not None
    numbers = range(1, run.total + 1)
    assert [step for step in numbers if run.is_evaluated(step)] == evaluated
    without = steps(every, evaluates=False, last=last)
    assert not any(map(without.is_evaluated, numbers))


def test_a_step_is_a_batch_of_its_epoch() -> None:
    run = steps("epoch")
    assert run.total == 9
    assert [run.passes.place_of(step) for step in (1, 3, 4)] == [(1, 0), (1, 2), (2, 0)]
    assert [step for step in range(1, 10) if run.passes.ends(step)] == [3, 6, 9]
    phase = run.phase(6)
    assert (phase.step, phase.epoch, phase.rows, phase.evaluated) == (6, 2, 2, True)


def test_the_start_of_a_run_names_its_steps_and_rows() -> None:
    start = steps(4).start_at(5, 1, {})
    assert (start.first_step, start.last_step, start.steps_per_epoch) == (5, 9, 3)
    assert (start.evaluation_every, start.rows, start.evaluation_rows) == (4, 4, 10)
    assert steps(4, evaluates=False).start_at(1, 1, {}).evaluation_every == 0


def test_passes_over_new_rows_follow_a_step() -> None:
    """The run has stopped after step 4, in the second epoch over other rows."""
    passes = Passes(3, 10, step=4, epoch=2)
    places = [passes.place_of(step) for step in range(5, 11)]
    assert places == [(3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (4, 2)]
    assert [passes.step_at(place) for place in places] == [*range(5, 11)]
    assert [passes.following(place) for place in places] == [*places[1:], None]
    assert [step for step in range(5, 11) if passes.ends(step)] == [7, 10]
