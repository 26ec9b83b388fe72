"""Fixtures of the tests of ops, which compile thousands of programs that run once."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def compile_quickly(quick_compilation):
    """Compile with few optimizations, and free compiled programs after each module."""
    yield
    jax.clear_caches()
