"""What the tests that run models share."""

import jax
import pytest


@pytest.fixture(scope="module")
def quick_compilation():
    """float64, and small graphs as XLA finds them: they compile for longer than they
    run, and optimizing takes most of it."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.enable_x64(True):
        yield
    jax.config.update("jax_disable_most_optimizations", before)
