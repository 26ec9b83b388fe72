"""Schedules against optax, and the messages for bad ones."""

import jax
import optax
import pytest

from placer.errors import PlacerError
from placer.graph.schedules import check
from placer.runtime.schedules import schedule

EXPONENTIAL = {"exponential": {"init": 0.1, "rate": 0.9, "steps": 7}}
STAIRCASE = {"exponential": {"init": 0.1, "rate": 0.5, "steps": 7, "staircase": True}}
COSINE = {"cosine": {"init": 0.01, "steps": 30}}
COSINE_ALPHA = {"cosine": {"init": 0.01, "steps": 30, "alpha": 0.1}}


def warmup(then, **more):
    return {"warmup": {"steps": 10, "then": then, **more}}


def joined(start, peak, then):
    return optax.join_schedules([optax.linear_schedule(start, peak, 10), then], [10])


@pytest.mark.parametrize(
    ("spec", "reference"),
    [
        (0.25, lambda: optax.constant_schedule(0.25)),
        (EXPONENTIAL, lambda: optax.exponential_decay(0.1, 7, 0.9)),
        (STAIRCASE, lambda: optax.exponential_decay(0.1, 7, 0.5, staircase=True)),
        (COSINE, lambda: optax.cosine_decay_schedule(0.01, 30)),
        (COSINE_ALPHA, lambda: optax.cosine_decay_schedule(0.01, 30, alpha=0.1)),
        (
            warmup(COSINE),
            lambda: joined(0.0, 0.01, optax.cosine_decay_schedule(0.01, 30)),
        ),
        (
            warmup(0.5, **{"from": 0.1}),
            lambda: joined(0.1, 0.5, optax.constant_schedule(0.5)),
        ),
        (
            warmup(warmup(STAIRCASE)),
            lambda: joined(
                0.0,
                0.0,
                joined(0.0, 0.1, optax.exponential_decay(0.1, 7, 0.5, 0, True)),
            ),
        ),
    ],
)
def test_schedules_equal_optax(spec, reference):
    ours = schedule(spec)
    with jax.enable_x64(True):
        theirs = [float(reference()(step)) for step in range(50)]
    assert [ours(step) for step in range(50)] == pytest.approx(theirs, rel=1e-12)


def test_the_first_step_is_step_0():
    assert schedule(COSINE)(0) == 0.01
    assert schedule(warmup(COSINE))(0) == 0.0
    assert schedule(warmup(COSINE))(10) == 0.01


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fast", "a learning rate is a number or a schedule, not the text 'fast'"),
        (-0.1, "a learning rate must be at least 0, not -0.1"),
        (True, "a learning rate must be a number, not true"),
        ([0.1], "not a list"),
        ({"cosin": {}}, "unknown schedule 'cosin'; did you mean 'cosine'?"),
        ({"cosine": 0.1}, "'cosine' takes a mapping, not 0.1: {cosine: {init, steps"),
        ({"cosine": {"init": 0.1}}, "schedule 'cosine': 'steps' is missing"),
        ({"cosine": {"init": 0.1, "stpes": 3}}, "'stpes'; did you mean 'steps'?"),
        ({"cosine": {"init": 0.1, "steps": 1.5}}, "'steps' must be a whole number"),
        ({"cosine": {"init": 0.1, "steps": 0}}, "'steps' must be at least 1, not 0"),
        (
            {"exponential": {"init": 0.1, "rate": 0, "steps": 2}},
            "'rate' must be greater than 0",
        ),
        (
            {"exponential": {"init": 1, "rate": 1, "steps": 2, "staircase": 1}},
            "'staircase' must be true or false, not 1",
        ),
        ({"warmup": {"steps": 5}}, "schedule 'warmup': 'then' is missing"),
        (
            warmup({"cosine": {"init": "x", "steps": 1}}),
            "in 'then': schedule 'cosine': 'init' must be a number, not the text 'x'",
        ),
        ({"cosine": {}, "warmup": {}}, "a schedule has one name, here are 2"),
    ],
)
def test_bad_schedules_say_what_is_wrong(spec, message):
    assert message in check(spec)
    with pytest.raises(PlacerError):
        schedule(spec)
