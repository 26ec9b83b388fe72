"""What a node does before the first step: it compiles, and caches memory and
programs."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from placer import launch
from placer.compiler.driver import compile as compile_model
from placer.compiler.frontend import load, load_text
from placer.runtime.control.options import Options
from placer.runtime.node import program_file
from placer.runtime.process import threads
from placer.runtime.training_loop import executor
from placer.system.caches.compilation import cache_folder, keep_compiled
from placer.system.memory.allocator import MIN_STEP_BYTES
from placer.system.resources import find_file


@pytest.fixture
def programs(monkeypatch):
    """The jitted functions of all loaded programs, by node and name."""
    functions = {}
    load_program = program_file.load_program

    def load_and_record(folder, plan, node):
        hooks = load_program(folder, plan, node)
        for name, value in hooks[0].__globals__.items():
            if hasattr(value, "_cache_size"):
                functions[node.name, name] = value
        return hooks

    monkeypatch.setattr(program_file, "load_program", load_and_record)
    return functions


@pytest.mark.parametrize("spec", ["digits", "two_workers", "diabetes"])
def test_steps_compile_nothing_after_the_warm_up(tmp_path, programs, spec):
    compile_model(load(find_file(f"specs/{spec}.yaml")), tmp_path / "build")
    check_compiled_ahead(tmp_path / "build", programs, steps=3)


CHAIN = """
name: chain
nodes: {worker: {count: 3}}
inputs: {x: "float32[batch, 4]", y: "float32[batch, 1]"}
data: {train: {source: "npz:rows.npz", batch: 4, remainder: keep}}
graph:
  - {name: a, op: fc, in: x, size: 3, place: "/node:worker:0/cpu"}
  - {name: b, op: fc, in: a, size: 3, activation: tanh, place: "/node:worker:1/cpu"}
  - {name: c, op: fc, in: b, size: 1, place: "/node:worker:2/cpu"}
  - {name: loss, op: mean_squared_error, in: [c, y], place: "/node:worker:2/cpu"}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""


def test_a_node_without_rows_compiles_the_short_batch_in_the_warm_up(
    tmp_path, programs
):
    np.savez(tmp_path / "rows.npz", x=np.ones((10, 4)), y=np.ones((10, 1)))
    model = load_text(CHAIN, "chain.yaml", tmp_path)
    compile_model(model, tmp_path / "build")
    check_compiled_ahead(tmp_path / "build", programs, steps=3)
    assert any(name == "worker:1" for name, _ in programs)


def check_compiled_ahead(build, programs, steps):
    sizes = []
    run_warm_up = executor.run_warm_up

    def warm_up_and_count(*args):
        run_warm_up(*args)
        sizes.append({key: fn._cache_size() for key, fn in programs.items()})

    executor.run_warm_up = warm_up_and_count
    try:
        threads.run_in_threads(build, Options(steps=steps))
    finally:
        executor.run_warm_up = run_warm_up
    assert programs
    assert sizes
    after = {key: fn._cache_size() for key, fn in programs.items()}
    readers = {key: size for key, size in after.items() if key[0].startswith("worker")}
    # The last thread's count includes everything that any of them has compiled.
    for key, size in readers.items():
        assert size == max(seen.get(key, 0) for seen in sizes), key


def test_the_memory_of_a_large_step_is_kept():
    code = f"""
import resource
from placer.system.memory.allocator import keep_memory
import numpy as np
assert not keep_memory({MIN_STEP_BYTES} - 1)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(64 << 20, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
before = min(faults(), faults())
assert keep_memory({MIN_STEP_BYTES})
faults()
assert faults() < before / 4, "the second time the same pages are there"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_threads_keep_the_memory_of_a_large_step_too():
    """A thread that an import started would have an arena of its own. Threads of JAX
    would share it, and the largest buffers in it are mapped anew each time."""
    code = f"""
import resource, threading
from concurrent.futures import ThreadPoolExecutor
import placer.command.run, placer.runtime.process.entry_point
from placer.system.memory.allocator import keep_memory
import numpy as np
assert keep_memory({MIN_STEP_BYTES})
all_run, turn = threading.Barrier(4), threading.Lock()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(65 << 20, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def work():
    all_run.wait()
    with turn:
        faults()
        return faults()
with ThreadPoolExecutor(4) as pool:
    counts = [each.result() for each in [pool.submit(work) for _ in range(4)]]
assert max(counts) < 50, counts
"""
    subprocess.run([sys.executable, "-c", code], check=True)


CACHE = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture
def unset_cache():
    """Let JAX have no folder of a cache, as in a new process."""
    before = {name: getattr(jax.config, name) for name in CACHE}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("unset_cache")
def test_compiled_programs_are_cached_in_placer_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLACER_CACHE", str(tmp_path / "kept"))
    keep_compiled()
    folder = cache_folder()
    assert folder.is_dir()
    assert folder.parent == tmp_path / "kept"
    assert jax.config.jax_compilation_cache_dir == str(folder)


@pytest.mark.usefixtures("unset_cache")
def test_nothing_is_cached_in_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLACER_CACHE", str(tmp_path / "file"))
    keep_compiled()
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.usefixtures("unset_cache")
def test_jax_keeps_a_configured_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PLACER_CACHE", str(tmp_path / "kept"))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    keep_compiled()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")


@pytest.mark.usefixtures("unset_cache")
def test_threads_do_not_configure_the_cache_of_jax(tmp_path, monkeypatch):
    compile_model(load(find_file("specs/two_workers.yaml")), tmp_path / "build")
    monkeypatch.setenv("PLACER_CACHE", str(tmp_path / "kept"))
    launch(tmp_path / "build", steps=1, in_process=True)
    assert jax.config.jax_compilation_cache_dir is None
    assert not list((tmp_path / "kept").glob("xla-*"))


def test_nothing_is_cached_for_a_user_without_a_home():
    code = """
import jax
from placer.system.caches.compilation import keep_compiled
keep_compiled()
assert jax.config.jax_compilation_cache_dir is None
"""
    gone = ("HOME", "XDG_CACHE_HOME", "PLACER_CACHE")
    env = {key: value for key, value in os.environ.items() if key not in gone}
    homeless = "import os; os.setuid(54321)" if os.getuid() == 0 else ""
    if not homeless:
        pytest.skip("only root can become a user that has no home")
    done = subprocess.run(
        [sys.executable, "-c", f"import jax; {homeless}{code}"],
        env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_server_that_computes_nothing_does_not_import_jax(tmp_path):
    build = tmp_path / "build"
    model = load(find_file("specs/seed_ctr.yaml"), nodes={"worker": 1, "ps": 1})
    plan = compile_model(model, build)
    assert [node.computes for node in plan.nodes] == [{"cpu:0": ("cpu:0",)}, {}]
    code = """
import sys
from pathlib import Path
from placer.plan.plan import read_plan
from placer.runtime.exchange.devices import in_precision, open_devices
plan = read_plan(Path(sys.argv[1]))
server = plan.nodes[1]
import placer.runtime.training_loop.executor, placer.runtime.training_loop.make_dense_tables
with open_devices(server, False), in_precision(plan, server):
    assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(build)], check=True)
