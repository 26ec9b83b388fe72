"""Fixtures of the tests of the runtime, which compile programs that run for few steps."""

import pytest
from support.watched_threads import watched_threads

from placer.runtime.node import program_file


@pytest.fixture(scope="module")
def threads_watched():
    """Watch the threads of the runs of a module, and their locks."""
    with watched_threads():
        yield


@pytest.fixture(scope="module", autouse=True)
def compile_quickly(quick_compilation):
    """Compile with few optimizations."""


@pytest.fixture(scope="module", autouse=True)
def programs_loaded_once():
    """Load a program once for all runs of a build by threads, so that JAX compiles it
    once for the tests of a module."""
    loaded = {}
    load = program_file.load_program

    def load_once(folder, plan, node):
        key = folder, plan.digest, node.program
        if key not in loaded:
            loaded[key] = load(folder, plan, node)
        return loaded[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_file, "load_program", load_once)
        yield
