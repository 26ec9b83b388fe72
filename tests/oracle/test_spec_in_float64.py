"""R1 in float64 for every model of `specs/`, where rounding hides no difference."""

import jax
import numpy as np
import pytest
from support.marks import slow_but
from support.plain import specs as plain_specs
from support.run_ways import check_same, run_build, run_plain
from support.spec_models import (
    PLAIN_PROGRAMS,
    SYNCHRONOUS,
    copy_spec,
    initial_parameters,
    read_rows,
    read_yaml,
)

from placer.compiler.driver import compile

IN_EVERY_RUN = ("breast_cancer",)

pytestmark = pytest.mark.usefixtures("in_float64")


@pytest.mark.parametrize("steps", slow_but([20], [20, 100]))
@pytest.mark.parametrize("model", slow_but(IN_EVERY_RUN, SYNCHRONOUS))
def test_every_element_of_a_spec_equals_plain_jax(model, steps, tmp_path):
    """Evaluations too. The generic plain program is compared with those by hand."""
    spec = copy_spec(model, tmp_path, "float64")
    plan = compile(spec, tmp_path / "seen")
    initial, columns = initial_parameters(plan), read_rows(read_yaml(spec), tmp_path)
    with jax.enable_x64(True):
        wanted = run_plain(spec, columns, initial, steps)
        if model in PLAIN_PROGRAMS:
            history, parameters = plain_specs.train(
                PLAIN_PROGRAMS[model](), initial, steps
            )
            for got, line in zip(wanted.history, history, strict=True):
                assert got == pytest.approx(line, rel=1e-9)
            for name, value in parameters.items():
                np.testing.assert_allclose(wanted.parameters[name], value, atol=1e-7)
    placed = run_build(
        spec, tmp_path / "build", initial, single_process=False, steps=steps
    )
    check_same(placed, wanted, "placed against plain JAX")
