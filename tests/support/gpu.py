"""Marks of tests that need a GPU, or a machine without one."""

import jax
import pytest


def _has_gpu() -> bool:
    try:
        return bool(jax.devices("gpu"))
    except RuntimeError:
        return False


needs_gpu = pytest.mark.skipif(not _has_gpu(), reason="there is no GPU")
without_gpu = pytest.mark.skipif(_has_gpu(), reason="this machine has a GPU")
