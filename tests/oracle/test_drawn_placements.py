"""R1: placement never changes the mathematics, for drawn models and placements."""

import contextlib
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from both_ways import check_same, run_drawn
from drawn_graphs import Drawn, models
from hypothesis import HealthCheck, assume, given, settings

SETTINGS = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Small graphs compile for longer than they run: XLA need not optimize them."""
    with contextlib.ExitStack() as ways:
        jax.config.update("jax_disable_most_optimizations", True)
        ways.callback(jax.config.update, "jax_disable_most_optimizations", False)
        ways.enter_context(jax.enable_x64(True))
        yield


def holds(drawn: Drawn) -> None:
    with tempfile.TemporaryDirectory() as folder:
        traces = run_drawn(drawn, Path(folder))
    wanted = traces["plain"]
    numbers = [value for line in wanted.history for value in line.values()]
    # Where training runs away, differences of rounding do too.
    assume(np.all(np.isfinite(numbers)) and np.max(np.abs(numbers)) < 1e3)
    check_same(traces["placed"], wanted, "placed against plain")
    check_same(traces["one process"], wanted, "one process against plain")
    check_same(traces["placed"], traces["one process"], "placed against one process")


@given(models())
@settings(SETTINGS, max_examples=40, derandomize=True)
def test_a_placed_model_trains_as_plain_jax_does(drawn):
    holds(drawn)


@pytest.mark.slow
@given(models())
@settings(SETTINGS, max_examples=500)
def test_many_placed_models_train_as_plain_jax_does(drawn):
    holds(drawn)
