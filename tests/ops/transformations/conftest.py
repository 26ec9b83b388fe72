"""Fixtures of the tests of optax optimizers."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def in_float64(quick_compilation):
    """Enable float64, and compile quickly."""
    with jax.enable_x64(True):
        yield
    jax.clear_caches()
