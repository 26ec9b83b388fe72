"""R1 in float32 for the models of `specs/` whose plain JAX programs are written by hand:
as placed, and as one process."""

import numpy as np
import pytest
from support.marks import slow_but
from support.plain import specs as plain_specs
from support.run_ways import run_build
from support.spec_models import BY_HAND, copied, drawn_parameters

from placer.compiler import compile

STEPS = 100
EPSILON = float(np.finfo(np.float32).eps)
LEAST = {"digits": 1e-6}
"""How close two float32 programs are asked to come where a loss has become small, if not
to one rounding at 1. The loss of digits falls to 0.005 from terms of about 10, whose
roundings alone are that far apart between plain JAX and one process. That a placement
changes nothing is held to R1's own bounds in test_one_process.py, and to 1e-9 in
test_spec_in_float64.py."""
IN_EVERY_RUN = ("diabetes", "two_workers")


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
@pytest.mark.parametrize("model", slow_but(IN_EVERY_RUN, BY_HAND))
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
