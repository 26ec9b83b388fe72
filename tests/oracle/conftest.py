"""What the tests that run models share.

The plain formula of each op is that of the ops' own tests.
"""

import functools
import sys
from importlib.metadata import version
from pathlib import Path

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))


@pytest.fixture(scope="module")
def quick_compilation():
    """float64, and small graphs as XLA finds them: they compile for longer than they
    run, and optimizing takes most of it. Half of the rest is what makes code of fusions;
    jaxlib 0.10 can do without."""
    before, jit = jax.config.read("jax_disable_most_optimizations"), jax.jit
    jax.config.update("jax_disable_most_optimizations", True)
    if version("jaxlib").startswith("0.10."):
        options = {"xla_cpu_use_fusion_emitters": False}
        jax.jit = functools.partial(jit, compiler_options=options)
    with jax.enable_x64(True):
        yield
    jax.jit = jit
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """Programs of a module do not run again: their memory is given back."""
    yield
    jax.clear_caches()
