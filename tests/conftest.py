"""Settings and fixtures of all tests."""

import functools
import gc
import os
import signal
from importlib import import_module
from importlib.metadata import version

import jax
import pytest
from hypothesis import settings

from placer.system.caches.compilation import keep_compiled

# So that a failed `assert` in a shared check shows the values that it compares.
pytest.register_assert_rewrite("support")

# Verify every op after every pass, not only what the pass changed.
os.environ["PLACER_VERIFY"] = "all"

# Nearly all that a test traces and compiles stays, and by default the collector looks at
# all of it after every 700 new objects.
gc.set_threshold(50_000)

# Two of these emulate other devices; more devices would make all tests slower.
jax.config.update("jax_num_cpu_devices", 3)

# Many tests compile the same small programs, in several processes.
keep_compiled()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


# On a busy machine any example can take a second.
settings.register_profile("placer", deadline=None)
settings.load_profile("placer")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, for `-n auto`
def pytest_xdist_auto_num_workers():
    """One more than there are cores: some tests wait for processes that they start."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_modifyitems(items):
    """Run the longest test first, so that no process runs it alone at the end."""
    items.sort(key=lambda item: "test_drawn_placements" not in item.nodeid)


# A shell that starts the tests in the background makes them ignore SIGINT; tests of
# interrupts would then wait forever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def quick_compilation():
    """Turn off most optimizations of XLA for the tests of a module.

    Small programs compile for longer than they run, and most of that time is spent on
    optimization. Half of the rest is spent on the fusion emitters, which jaxlib 0.10
    can do without.
    """
    # Functions that optax jits when it is imported keep JAX's own jit, so that other jitted
    # functions may call them.
    import_module("optax")
    before, jit = jax.config.read("jax_disable_most_optimizations"), jax.jit
    jax.config.update("jax_disable_most_optimizations", True)
    if version("jaxlib").startswith("0.10."):
        options = {
            "xla_cpu_use_fusion_emitters": False,
            "xla_cpu_parallel_codegen_split_count": 1,
            "xla_cpu_max_isa": "AVX2",
            "xla_cpu_prefer_vector_width": 128,
        }
        jax.jit = functools.partial(jit, compiler_options=options)
        jax.jit.__name__ = jit.__name__  # Haiku reads it
    yield
    jax.jit = jit
    jax.config.update("jax_disable_most_optimizations", before)
