"""R1 in float32 for models of `specs/`, compared with plain JAX programs written by
hand."""

import numpy as np
import pytest
from support.marks import slow_but
from support.plain import specs as plain_specs
from support.run_ways import run_build
from support.spec_models import PLAIN_PROGRAMS, copy_spec, initial_parameters

from placer.compiler.driver import compile

STEPS = 100
EPSILON = float(np.finfo(np.float32).eps)
TOLERANCE = {"digits": 1e-6}
"""The absolute tolerance of a small loss, by default one rounding at 1. The loss of
digits falls to 0.005, but it is computed from terms of about 10; their rounding errors
alone make this difference between plain JAX and one process. test_one_process.py checks
the bounds of R1, and test_spec_in_float64.py checks 1e-9."""
IN_EVERY_RUN = ("two_workers",)


@pytest.fixture(scope="module")
def by_hand():
    """Return a function that trains a model with its plain program, once."""
    results = {}

    def of(model, initial):
        if model not in results:
            results[model] = plain_specs.train(PLAIN_PROGRAMS[model](), initial, STEPS)
        return results[model]

    return of


@pytest.mark.parametrize("single_process", [False, True], ids=["placed", "one_process"])
@pytest.mark.parametrize("model", slow_but(IN_EVERY_RUN, PLAIN_PROGRAMS))
def test_100_steps_of_a_spec_equal_those_of_plain_jax(
    model, single_process, by_hand, tmp_path
):
    spec = copy_spec(model, tmp_path, "float32")
    plan = compile(spec, tmp_path / "seen", single_process=single_process)
    assert (len(plan.nodes) == 1) == single_process
    initial = initial_parameters(plan)
    wanted_history, wanted = by_hand(model, initial)
    trace = run_build(
        spec, tmp_path / "build", initial, single_process=single_process, steps=STEPS
    )
    for step, (got, expected) in enumerate(
        zip(trace.history, wanted_history, strict=True), 1
    ):
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            close = {"rel": 1e-5, "abs": TOLERANCE.get(model, EPSILON)}
            assert got[name] == pytest.approx(value, **close), f"step {step}: {name}"
    assert trace.parameters.keys() == wanted.keys()
    for name, value in wanted.items():
        distance = np.linalg.norm(trace.parameters[name] - value)
        assert distance <= 1e-4 * np.linalg.norm(value), name
