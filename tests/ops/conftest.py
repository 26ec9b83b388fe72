"""What the tests of ops share: they compile thousands of small programs, each of which
runs once."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def quickly(quick_compilation):
    """All of them compile quickly, and give back the memory of what they compiled."""
    yield
    jax.clear_caches()
