"""Learning-rate schedules compared with optax, and messages for malformed ones."""

import math

import jax
import optax
import pytest
from msgspec import structs

from placer.errors import PlacerError
from placer.plan.settings.training.schedules import FORMS, fill_batch, read_rate
from placer.tables.learning_rate import build_schedule


def _build(spec):
    return build_schedule(read_rate(spec))


EXPONENTIAL = {"exponential": {"init": 0.1, "rate": 0.9, "steps": 7}}
STAIRCASE = {"exponential": {"init": 0.1, "rate": 0.5, "steps": 7, "staircase": True}}
COSINE = {"cosine": {"init": 0.01, "steps": 30}}
COSINE_ALPHA = {"cosine": {"init": 0.01, "steps": 30, "alpha": 0.1}}


LINEAR = {"linear": {"init": 0.1, "end": 0.3, "steps": 20}}
PIECEWISE = {"piecewise": {"boundaries": [5, 6, 40], "values": [0.1, 0.01, 0.5, 0]}}


def polynomial(**more):
    return {"polynomial": {"init": 0.1, "end": 0.02, "steps": 15, **more}}


def scaling(then, **more):
    return {"linear_scaling": {"batch": 1024, "then": then, **more}}


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
        (LINEAR, lambda: optax.linear_schedule(0.1, 0.3, 20)),
        (polynomial(), lambda: optax.polynomial_schedule(0.1, 0.02, 1, 15)),
        (polynomial(power=2.5), lambda: optax.polynomial_schedule(0.1, 0.02, 2.5, 15)),
        (
            PIECEWISE,
            lambda: optax.join_schedules(
                list(map(optax.constant_schedule, [0.1, 0.01, 0.5, 0.0])), [5, 6, 40]
            ),
        ),
        (
            {"piecewise": {"boundaries": [10, 30], "values": [0.8, 0.4, 0.1]}},
            lambda: optax.piecewise_constant_schedule(0.8, {10: 0.5, 30: 0.25}),
        ),
        (
            {"natural_exp": {"init": 0.1, "rate": 0.5, "steps": 7}},
            lambda: optax.exponential_decay(0.1, 7, math.exp(-0.5)),
        ),
        (
            {"natural_exp": {"init": 1, "rate": 2, "steps": 7, "staircase": True}},
            lambda: optax.exponential_decay(1.0, 7, math.exp(-2), staircase=True),
        ),
        (scaling(COSINE), lambda: optax.cosine_decay_schedule(0.04, 30)),
        (scaling(0.1, base_batch=512), lambda: optax.constant_schedule(0.2)),
        (
            scaling(STAIRCASE, warmup=10),
            lambda: joined(
                0.1, 0.4, optax.exponential_decay(0.4, 7, 0.5, staircase=True)
            ),
        ),
    ],
)
def test_schedules_equal_optax(spec, reference):
    ours = _build(spec)
    with jax.enable_x64(True):
        theirs = [float(reference()(step)) for step in range(50)]
    assert [ours(step) for step in range(50)] == pytest.approx(theirs, rel=1e-12)


def test_inverse_time_divides_by_one_plus_the_elapsed_periods():
    body = {"init": 0.6, "rate": 0.5, "steps": 10}
    rates = _build({"inverse_time": body})
    stairs = _build({"inverse_time": {**body, "staircase": True}})
    assert [rates(t) for t in (0, 10, 25)] == pytest.approx([0.6, 0.4, 0.6 / 2.25])
    assert [stairs(t) for t in (0, 9, 10, 29)] == pytest.approx([0.6, 0.6, 0.4, 0.3])


def test_a_cyclic_polynomial_restarts_with_a_longer_period():
    rates = _build(polynomial(end=0.0, cycle=True))
    # It is zero at multiples of 15; after one of them the period is the next multiple.
    assert [rates(t) for t in (0, 15, 30)] == [0.1, 0.0, 0.0]
    assert rates(16) == pytest.approx(0.1 * (1 - 16 / 30))
    assert rates(31) == pytest.approx(0.1 * (1 - 31 / 45))


def test_noam_rises_during_warm_up_and_falls_with_the_square_root():
    rates = _build({"noam": {"size": 512, "warmup": 4000}})
    steps = [rates(n - 1) for n in range(1, 12001)]
    assert max(steps) == rates(3999) == pytest.approx(512**-0.5 * 4000**-0.5)
    assert rates(0) == pytest.approx(512**-0.5 * 4000**-1.5)
    assert rates(1999) == pytest.approx(rates(3999) / 2)
    assert rates(15999) == pytest.approx(rates(3999) / 2)
    twice = _build({"noam": {"size": 512, "warmup": 4000, "factor": 2}})
    assert twice(7) == pytest.approx(2 * rates(7))


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_built_and_never_negative(name):
    body = {
        "init": 0.1, "end": 0.0, "rate": 0.5, "steps": 3, "boundaries": [2],
        "values": [0.1, 0.0], "size": 8, "warmup": 2, "then": 0.1,
    }  # fmt: skip
    fields = structs.fields(FORMS[name])
    spec = {name: {each.name: body[each.name] for each in fields if each.required}}
    built = build_schedule(fill_batch(read_rate(spec), 512))
    rates = [built(step) for step in range(100)]
    assert min(rates) >= 0
    assert max(rates) > 0
    assert all(isinstance(rate, float) for rate in rates)
    assert FORMS[name].__doc__.startswith(f"{{{name}: {{")


def test_the_first_step_is_step_0():
    assert _build(COSINE)(0) == 0.01
    assert _build(warmup(COSINE))(0) == 0.0
    assert _build(warmup(COSINE))(10) == 0.01


SCALED = {"linear_scaling": {"then": 0.1}}


def test_linear_scaling_needs_the_batch():
    with pytest.raises(PlacerError, match="'batch' is missing"):
        build_schedule(read_rate(SCALED))
    assert build_schedule(fill_batch(read_rate(SCALED), 512))(0) == pytest.approx(0.2)


def test_the_batch_is_filled_in_inside_a_warm_up():
    spec = {"warmup": {"steps": 2, "then": {"linear_scaling": {"then": 0.1}}}}
    assert build_schedule(fill_batch(read_rate(spec), 1024))(2) == pytest.approx(0.4)


def test_an_explicit_batch_is_kept():
    rate = read_rate({"linear_scaling": {"batch": 256, "then": 0.1}})
    assert fill_batch(rate, 1024) == rate
