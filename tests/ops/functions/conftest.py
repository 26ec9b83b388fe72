"""Fixtures of the tests of traced functions."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def compile_quickly():
    """Compile as users do: these tests nest jitted functions."""
