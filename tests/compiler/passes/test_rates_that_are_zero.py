"""Warnings about optimizers that train nothing."""

import pytest
from support.small_models import load_model, two_layers

import placer
from placer.compiler.driver import compile_in_memory
from placer.compiler.passes.rates_of_zero import find_rates_of_zero
from placer.plan.settings.training.schedules import is_always_zero, read_rate
from placer.tables.learning_rate import build_schedule

DECAY = {"init": 0.0, "rate": 0.5, "steps": 3}


@pytest.mark.parametrize(
    "rate",
    [
        *(0, 0.0, 0.1),
        *({kind: DECAY} for kind in ("exponential", "natural_exp", "inverse_time")),
        *(
            {kind: {"init": 0, "end": end, "steps": 3}}
            for kind in ("linear", "polynomial")
            for end in (0, 0.1)
        ),
        {"cosine": {"init": 0.0, "steps": 3, "alpha": 0.5}},
        {"cosine": {"init": 0.1, "steps": 3}},
        {"piecewise": {"boundaries": [2], "values": [0.0, 0.0]}},
        {"piecewise": {"boundaries": [2], "values": [0.0, 0.1]}},
        {"noam": {"size": 4, "warmup": 2}},
        {"warmup": {"steps": 3, "then": 0.0}},
        {"warmup": {"steps": 3, "from": 0.1, "then": 0.0}},
        {"linear_scaling": {"batch": 8, "warmup": 2, "then": {"exponential": DECAY}}},
    ],
    ids=str,
)
def test_the_rate_of_every_step_is_zero(rate):
    rate = read_rate(rate)
    schedule = build_schedule(rate)
    assert is_always_zero(rate) == all(schedule(step) == 0 for step in range(9))


def test_each_optimizer_with_a_rate_of_zero_is_a_warning():
    outer = "outer: {op: momentum, learning_rate: 0}"
    text = two_layers(
        optimizer=f"[{{op: adam, learning_rate: 0.0, match: 'h.*'}},"
        f" {{op: sgd, learning_rate: 0.1, update: {{geo: {{every: 2, {outer}}}}}}}]"
    )
    inner, of_servers = find_rates_of_zero(load_model(text).graph)
    assert inner.startswith("model.yaml:19:16: 'adam' trains nothing: its")
    assert "hint: write a rate above 0, or trainable: false" in inner
    assert "the outer optimizer 'momentum' trains nothing" in of_servers
    text = two_layers(
        optimizer="{op: sgd, learning_rate: {warmup: {steps: 2, then: 0}}}"
    )
    with pytest.warns(placer.SpecWarning, match="'sgd' trains nothing"):
        compile_in_memory(load_model(text))
