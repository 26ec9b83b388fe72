"""Fixtures of the tests of the runtime, which compile programs that run for few steps."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def compile_quickly(quick_compilation):
    """Compile with few optimizations."""
