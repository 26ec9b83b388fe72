"""What all tests share."""

import functools
import signal
from importlib.metadata import version

import jax
import pytest

# Checks that several tests share show the values that an `assert` of theirs compares.
pytest.register_assert_rewrite("support")

# Two to emulate others by; more would make everything slower.
jax.config.update("jax_num_cpu_devices", 3)


def pytest_collection_modifyitems(items):
    """The longest first: of several processes none is left with it at the end."""
    items.sort(key=lambda item: "test_drawn_placements" not in item.nodeid)


# A shell that starts the tests in the background has its children ignore interrupts:
# then those that test interrupts would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def quick_compilation():
    """Small programs, as XLA finds them: they compile for longer than they run, and
    optimizing takes most of it. Half of the rest is what makes code of fusions; jaxlib
    0.10 can do without."""
    before, jit = jax.config.read("jax_disable_most_optimizations"), jax.jit
    jax.config.update("jax_disable_most_optimizations", True)
    if version("jaxlib").startswith("0.10."):
        options = {"xla_cpu_use_fusion_emitters": False}
        jax.jit = functools.partial(jit, compiler_options=options)
    yield
    jax.jit = jit
    jax.config.update("jax_disable_most_optimizations", before)
