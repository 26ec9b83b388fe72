"""What a node does before the nodes meet: it compiles, and keeps memory and programs."""

import os
import subprocess
import sys

import pytest

from placer.compiler import compile as compile_model
from placer.files import find
from placer.runtime import process
from placer.runtime.allocator import FROM
from placer.runtime.execution import Options
from placer.spec import load


@pytest.fixture
def programs(monkeypatch):
    """The jitted functions of the programs that are loaded, by name."""
    found = {}
    load_program = process.load_program

    def watched(folder, plan, node):
        hooks = load_program(folder, plan, node)
        for name, value in hooks[0].__globals__.items():
            if hasattr(value, "_cache_size"):
                found[node.name, name] = value
        return hooks

    monkeypatch.setattr(process, "load_program", watched)
    return found


@pytest.mark.parametrize("spec", ["digits", "two_workers", "diabetes"])
def test_no_step_compiles_what_the_rehearsal_did_not(tmp_path, programs, spec):
    build = tmp_path / "build"
    compile_model(load(find(f"specs/{spec}.yaml")), build)
    sizes = []
    rehearse = process.execute.__globals__["rehearse"]

    def counted(*args):
        rehearse(*args)
        sizes.append({key: fn._cache_size() for key, fn in programs.items()})

    process.execute.__globals__["rehearse"] = counted
    try:
        process.run_in_threads(build, Options(steps=3))
    finally:
        process.execute.__globals__["rehearse"] = rehearse
    assert programs
    assert sizes
    after = {key: fn._cache_size() for key, fn in programs.items()}
    readers = {key: size for key, size in after.items() if key[0].startswith("worker")}
    # Threads share nothing here: the last of them has seen what each has compiled.
    for key, size in readers.items():
        assert size == max(seen.get(key, 0) for seen in sizes), key


def test_a_large_step_keeps_its_memory():
    code = f"""
import resource
from placer.runtime.allocator import keep_memory
import numpy as np
assert not keep_memory({FROM} - 1)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(64 << 20, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
before = min(faults(), faults())
assert keep_memory({FROM})
faults()
assert faults() < before / 4, "the second time the same pages are there"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_compiled_programs_are_kept_where_the_user_says(tmp_path):
    code = """
import jax, sys
from placer.runtime.compilation import cache_folder, keep_compiled
keep_compiled()
folder = cache_folder()
assert str(folder).startswith(sys.argv[1]), folder
assert jax.config.jax_compilation_cache_dir == str(folder)
assert folder.is_dir()
"""
    env = {**os.environ, "PLACER_CACHE": str(tmp_path / "kept")}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=env)


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path):
    code = """
import jax
from placer.runtime.compilation import keep_compiled
before = jax.config.jax_compilation_cache_dir
keep_compiled()
assert jax.config.jax_compilation_cache_dir == before
"""
    (tmp_path / "file").write_text("")
    env = {**os.environ, "PLACER_CACHE": str(tmp_path / "file")}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
