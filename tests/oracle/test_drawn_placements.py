"""R1: placement never changes the mathematics, for drawn models and placements."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from both_ways import check_alike, run_three_ways
from drawn_graphs import Drawn, models
from hypothesis import HealthCheck, assume, given, settings

SETTINGS = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


pytestmark = pytest.mark.usefixtures("quick_compilation")


def holds(drawn: Drawn) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = {which: drawn.rows(which) for which in ("train", "eval")}
        traces = run_three_ways(drawn.spec, rows, drawn.initial(), Path(folder))
    numbers = [value for line in traces["plain"].history for value in line.values()]
    # Where training runs away, differences of rounding do too.
    assume(np.all(np.isfinite(numbers)) and np.max(np.abs(numbers)) < 1e3)
    check_alike(traces)


@given(models())
@settings(SETTINGS, max_examples=40, derandomize=True)
def test_a_placed_model_trains_as_plain_jax_does(drawn):
    holds(drawn)


@pytest.mark.slow
@given(models())
@settings(SETTINGS, max_examples=500)
def test_many_placed_models_train_as_plain_jax_does(drawn):
    holds(drawn)
