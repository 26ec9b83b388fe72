"""What the tests that run models share.

The plain formula of each op is that of the ops' own tests.
"""

import jax
import pytest


@pytest.fixture(scope="module")
def in_float64(quick_compilation):
    """Of models in float64 no rounding asks for code as it is made for speed."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """Programs of a module do not run again: their memory is given back."""
    yield
    jax.clear_caches()
