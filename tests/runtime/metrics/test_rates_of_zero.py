"""A warning for learning rates that are 0 for the rest of a run."""

import pytest
from support.small_models import load_model, two_layers

import placer
from placer.compiler.driver import compile_in_memory
from placer.runtime.metrics.rates_of_zero import find_rates_of_zero

COSINE = "{cosine: {init: 0.1, steps: 5}}"


def warnings(optimizer, steps):
    plan = compile_in_memory(load_model(two_layers(optimizer=optimizer))).plan
    return find_rates_of_zero(plan, steps)


@pytest.mark.parametrize(
    ("rate", "steps", "first"),
    [
        (COSINE, 5, None),
        (COSINE, 8, 6),
        ("{linear: {init: 1.0, end: 0.0, steps: 3}}", 1500, 4),
        ("{piecewise: {boundaries: [2, 4], values: [0.0, 1.0, 0.0]}}", 6, 5),
        ("{piecewise: {boundaries: [2], values: [0.0, 1.0]}}", 6, None),
        ("{piecewise: {boundaries: [1], values: [0.0, 1.0]}}", 1, None),
        (f"{{warmup: {{steps: 2, then: {COSINE}}}}}", 9, 8),
        ("0.0", 6, None),
    ],
)
@pytest.mark.filterwarnings("ignore::placer.SpecWarning")
def test_of_a_schedule(rate, steps, first):
    found = warnings(f"{{op: sgd, learning_rate: {rate}}}", steps)
    assert len(found) == (first is not None)
    assert all(
        f"'sgd' is 0 from step {first} of {steps:,} on" in each for each in found
    )


def test_each_group_has_its_own():
    rest = "{op: momentum, learning_rate: {cosine: {init: 0.1, steps: 7}}}"
    groups = f"[{{op: sgd, learning_rate: {COSINE}, match: 'h.*'}}, {rest}]"
    assert len(warnings(groups, 6)) == 1
    assert len(warnings(groups, 9)) == 2


def test_an_outer_optimizer_counts_exchanges():
    outer = f"outer: {{op: momentum, learning_rate: {COSINE}}}"
    groups = f"{{op: sgd, learning_rate: 0.1, update: {{geo: {{every: 2, {outer}}}}}}}"
    assert warnings(groups, 10) == []
    (found,) = warnings(groups, 14)
    assert "the outer optimizer 'momentum' is 0 from step 12 of 14" in found


def test_a_run_warns_once_and_does_not_fail_for_it(tmp_path, capfd):
    """Its result is complete: a RunWarning, which may be an error, is for failures."""
    import numpy as np

    rows = {"x": np.ones((8, 16), np.float32), "y": np.ones((8, 4), np.float32)}
    np.savez(tmp_path / "rows.npz", **rows)
    spec = tmp_path / "small.yaml"
    spec.write_text(two_layers(optimizer=f"{{op: sgd, learning_rate: {COSINE}}}"))
    placer.compile(spec, tmp_path / "build", single_process=True)
    result = placer.launch(tmp_path / "build", steps=7, in_process=True)
    assert result.warnings == ()
    text = capfd.readouterr().err
    assert text.count("is 0 from step 6 of 7 on, so these steps train nothing") == 1
    assert "train 5 steps" in text
