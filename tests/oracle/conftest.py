"""Fixtures of the tests that compare placed models with plain JAX programs."""

import jax
import pytest


@pytest.fixture(scope="module")
def in_float64(quick_compilation):
    """Enable float64, and compile quickly: these tests do not depend on
    optimizations."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module", autouse=True)
def cleared_caches():
    """Free the memory of compiled programs after each module; they do not run again."""
    yield
    jax.clear_caches()
