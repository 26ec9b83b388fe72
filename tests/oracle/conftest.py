"""What the tests that run models share.

The plain formula of each op is that of the ops' own tests.
"""

import sys
from pathlib import Path

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))


@pytest.fixture(scope="module")
def quick_compilation():
    """float64, and small graphs as XLA finds them: they compile for longer than they
    run, and optimizing takes most of it."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.enable_x64(True):
        yield
    jax.config.update("jax_disable_most_optimizations", before)
