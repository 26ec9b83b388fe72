"""Published models: `pip install '.[models]'`, then `pytest -m slow tests/published`."""

import os

import jax
import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")  # an import of Keras reads it


@pytest.fixture(scope="module")
def in_float64():
    """Use float64 in all threads of the process: models read the setting."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
    jax.clear_caches()
