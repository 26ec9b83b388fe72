"""Fixtures of the tests of exported models."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def compile_quickly(quick_compilation):
    """Compile with few optimizations."""
