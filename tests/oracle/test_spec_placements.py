"""R1 for every model of `specs/`: as placed, and as one process, against plain JAX."""

import jax
import numpy as np
import plain_specs
import pytest
from both_ways import check_same, run_build, run_plain
from spec_models import BY_HAND, NAMES, copied, drawn_parameters, read, rows

from placer.compiler import compile

STEPS = 100
EPSILON = float(np.finfo(np.float32).eps)
LEAST = {"digits": 1e-6}
"""How close two float32 programs are asked to come where a loss has become small, if not
to one rounding at 1. The loss of digits falls to 0.005 from terms of about 10, whose
roundings alone are that far apart between plain JAX and one process. That a placement
changes nothing is held to R1's own bounds in test_one_process.py, and to 1e-9 below."""
SLOW = (
    *("seed_ctr", "transformer", "transformer_pipeline", "lstm", "lamb", "custom_op"),
    "digits_cnn",
)


def slow_in(models, slow):
    return [pytest.param(m, marks=pytest.mark.slow) if m in slow else m for m in models]


@pytest.fixture(scope="module")
def by_hand():
    """Each model trained by its plain program, once for both builds."""
    found = {}

    def of(model, initial):
        if model not in found:
            found[model] = plain_specs.train(BY_HAND[model](), initial, STEPS)
        return found[model]

    return of


@pytest.mark.parametrize("single_process", [False, True], ids=["placed", "one_process"])
@pytest.mark.parametrize("model", slow_in(BY_HAND, ("transformer", "lstm")))
def test_100_steps_of_a_spec_are_those_of_plain_jax(
    model, single_process, by_hand, tmp_path
):
    spec = copied(model, tmp_path, "float32")
    plan = compile(spec, tmp_path / "seen", single_process=single_process)
    assert (len(plan.nodes) == 1) == single_process
    initial = drawn_parameters(plan)
    wanted_history, wanted = by_hand(model, initial)
    found = run_build(
        spec, tmp_path / "build", initial, single_process=single_process, steps=STEPS
    )
    for step, (got, expected) in enumerate(
        zip(found.history, wanted_history, strict=True), 1
    ):
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            close = {"rel": 1e-5, "abs": LEAST.get(model, EPSILON)}
            assert got[name] == pytest.approx(value, **close), f"step {step}: {name}"
    assert found.parameters.keys() == wanted.keys()
    for name, value in wanted.items():
        distance = np.linalg.norm(found.parameters[name] - value)
        assert distance <= 1e-4 * np.linalg.norm(value), name


@pytest.mark.parametrize(
    "model",
    slow_in(NAMES, SLOW),
)
def test_a_spec_in_float64_is_plain_jax_to_every_element(model, tmp_path):
    """Evaluations too. What is read of the spec is what was written by hand."""
    spec = copied(model, tmp_path, "float64")
    plan = compile(spec, tmp_path / "seen")
    initial, columns = drawn_parameters(plan), rows(read(spec), tmp_path)
    with jax.enable_x64(True):
        wanted = run_plain(spec, columns, initial, STEPS)
        if model in BY_HAND:
            history, parameters = plain_specs.train(BY_HAND[model](), initial, STEPS)
            for got, line in zip(wanted.history, history, strict=True):
                assert got == pytest.approx(line, rel=1e-9)
            for name, value in parameters.items():
                np.testing.assert_allclose(wanted.parameters[name], value, atol=1e-7)
    found = run_build(
        spec, tmp_path / "build", initial, single_process=False, steps=STEPS
    )
    check_same(found, wanted, "placed against plain JAX")
