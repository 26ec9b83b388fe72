"""What the tests of ops share."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """These tests compile thousands of small programs, each of which runs once."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
