"""R1 with its own bounds: a spec as placed trains like the same spec as one process."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.marks import slow_but
from support.spec_models import SYNCHRONOUS

from placer.compiler.driver import compile
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.system.resources import find_file

IN_EVERY_RUN = (
    "lamb",
    "mlp_pipeline",
)
STEPS = 100
FEWER = {"lamb": 20}
"""Around step 25 of lamb, a value is closer to the corner of relu than a rounding
error. From there on, runs in one process diverge too if initial values differ by one
rounding."""


@pytest.mark.parametrize("model", slow_but(IN_EVERY_RUN, SYNCHRONOUS))
def test_100_steps_as_placed_equal_those_of_one_process(model, tmp_path):
    """In float32, from the initial values of the spec.

    The tolerance is 1e-5 relative for losses, 1e-4 of the norm for parameters.
    """
    losses, parameters = [], []
    steps = FEWER.get(model, STEPS)
    for single in (False, True):
        build = tmp_path / f"build{single}"
        compile(find_file(f"specs/{model}.yaml"), build, single_process=single)
        history, saved = tmp_path / f"history{single}", tmp_path / f"saved{single}"
        run_in_threads(build, Options(steps=steps, history=history, save_params=saved))
        lines = map(json.loads, history.read_text().splitlines())
        losses.append([line["metrics"]["loss"] for line in lines])
        parameters.append(load_file(saved))
    assert len(losses[0]) == steps
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert parameters[0].keys() == parameters[1].keys()
    for name, value in parameters[1].items():
        distance = np.linalg.norm(parameters[0][name] - value)
        assert distance <= 1e-4 * np.linalg.norm(value), name
