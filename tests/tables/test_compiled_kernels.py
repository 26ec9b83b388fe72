"""The cache of machine code, and that only updates import numba."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import config, types

from placer.plan.settings.sparse import row_bytes
from placer.plan.settings.training.optimizers import SGD
from placer.system.caches import turns
from placer.system.caches.kept_code import KeptCode
from placer.system.caches.machine_code import compile_function
from placer.tables import compiled_kernels, machine_code, optimizer_rules

UPDATE = """
import numpy as np
from placer.tables.dense import DenseTable
from placer.plan.settings.training.slicing import Block
from placer.plan.plan import Table
blocks = (Block("w", "w", 0, 3, (3,)),)
planned = Table(
    name="t", rule="momentum", learning_rate=1.0, blocks=blocks, devices="cpu:0"
)
table = DenseTable(planned, "float32", [np.zeros(3)])
table.update([np.ones(3, np.float32)], learning_rate=1.0)
print(table.values()[0].tolist())
"""


def run(code, **environment):
    """Return what Python prints, with the same packages and these variables."""
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("NUMBA", "XDG"))
    }
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stderr == ""
    return completed.stdout


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_machine_code_is_cached_in_the_users_cache_folder(tmp_path):
    package = Path(compiled_kernels.__file__).parents[1]
    before = files(package)
    assert run(UPDATE, XDG_CACHE_HOME=str(tmp_path)) == "[-1.0, -1.0, -1.0]\n"
    cached = files(tmp_path / "placer" / "kernels")
    assert [Path(name).suffix for name in cached] == [".nbc"]
    assert (tmp_path / "placer" / "kernels").stat().st_mode & 0o077 == 0
    assert [name for name in files(package) if ".nb" in name] == [
        name for name in before if ".nb" in name
    ]
    assert run(UPDATE, XDG_CACHE_HOME=str(tmp_path)) == "[-1.0, -1.0, -1.0]\n"
    assert files(tmp_path / "placer" / "kernels") == cached


@pytest.fixture
def caches(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def check_update():
    """Compile an update, and check what it does."""
    compiled_kernels._compiled.cache_clear()
    loop = compiled_kernels.compile_kernel(optimizer_rules.sgd, True, 1, "float32")
    numbers = np.zeros(1, optimizer_rules.record_of_numbers(np.dtype("float32")))
    numbers["rate"] = 0.5
    value = np.ones(3, np.float32)
    loop((value,), ((np.ones(3, np.float32),), np.float32(1), numbers))
    assert value.tolist() == [0.5, 0.5, 0.5]


def test_numba_cache_dir_is_used(caches, monkeypatch):
    """numba reads NUMBA_CACHE_DIR."""
    folder = caches / "all"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(config, "CACHE_DIR", str(folder))
    check_update()
    assert len(files(folder)) == 1
    assert not (caches / "placer").exists()


def test_machine_code_with_other_numbers_has_another_folder(tmp_path, monkeypatch):
    before = machine_code.cache_folder()
    changed = tmp_path / "row_bytes.py"
    source = Path(row_bytes.__file__).read_text()
    changed.write_text(source.replace("CHUNK: Final = 256", "CHUNK: Final = 512"))
    monkeypatch.setattr(row_bytes, "__file__", str(changed))
    machine_code._digest.cache_clear()
    try:
        assert machine_code.cache_folder() != before
    finally:
        machine_code._digest.cache_clear()


def test_an_update_works_without_a_cache_folder(caches, monkeypatch):
    blocked = caches / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    check_update()
    assert files(caches) == ["file"]


@pytest.mark.parametrize("damage", ["garbage", "a bit", "the end", "a folder"])
def test_a_broken_file_is_replaced(caches, damage):
    check_update()
    (kept,) = (caches / "placer").rglob("*.nb*")
    content = bytearray(kept.read_bytes())
    match damage:
        case "garbage":
            kept.write_bytes(b"broken")
        case "a bit":
            content[len(content) // 2] ^= 1
            kept.write_bytes(content)
        case "the end":
            kept.write_bytes(content[:-1])
        case "a folder":
            kept.unlink()
            kept.mkdir()
    broken = kept.is_file() and kept.read_bytes()
    check_update()
    if damage != "a folder":
        assert kept.read_bytes() != broken
    assert files(caches) == ([] if damage == "a folder" else [kept.name])


def test_processes_that_compile_at_the_same_time_keep_their_own_functions(tmp_path):
    """Functions of one place in the source, each by a process that sees no files of the
    other; those of the second are written last, but for an index."""

    def adder(number):
        return lambda x: x + number

    def compile_adder(number, folder):
        folder.mkdir(exist_ok=True)
        return compile_function(adder(number), [(types.int64,)], folder)

    assert compile_adder(1, tmp_path / "one")(1) == 2
    assert compile_adder(2, tmp_path / "two")(1) == 3
    for file in (tmp_path / "two").rglob("*.nbc"):
        shutil.copy(file, tmp_path / "one" / file.relative_to(tmp_path / "two"))
    assert compile_adder(1, tmp_path / "one")(1) == 2


def test_a_function_that_another_process_compiles_is_loaded_once_it_is_there(
    tmp_path, monkeypatch
):
    def compile_it(folder):
        folder.mkdir(exist_ok=True)
        return compile_function(lambda x: 2 * x, [(types.int64,)], folder)

    compile_it(tmp_path / "one")
    locked = []

    def lock(descriptor):
        if not locked:  # by the other process, which then is done
            shutil.copytree(tmp_path / "one", tmp_path / "two", dirs_exist_ok=True)
        locked.append(real_lock(descriptor) and len(locked) > 0)
        return locked[-1]

    real_lock = turns._lock
    monkeypatch.setattr(turns, "_lock", lock)
    loaded = compile_it(tmp_path / "two")
    assert locked == [False, True]
    assert sum(loaded.stats.cache_hits.values()) == 1
    assert loaded(4) == 8


def test_one_process_at_a_time_compiles_for_a_folder(tmp_path):
    first, second = (KeptCode(tmp_path / "code", "f", 0) for _ in range(2))
    with first.alone():
        descriptor = os.open(tmp_path / "code", os.O_RDONLY)
        assert not turns._lock(descriptor)
        with second.alone(patience=0):  # the first may be stopped
            pass
        with second.alone():  # does not wait again
            pass
        os.close(descriptor)
    with second.alone():
        pass
    assert second.load(0) is None


def test_a_folder_that_others_can_write_is_not_used(caches):
    folder = caches / "placer" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o770)
    assert machine_code.cache_folder() is None
    folder.chmod(0o700)
    assert machine_code.cache_folder().parent == folder


def test_placer_cache_is_used(caches, monkeypatch):
    monkeypatch.setenv("PLACER_CACHE", str(caches / "all"))
    assert machine_code.cache_folder().parent == caches / "all" / "kernels"


def test_a_folder_of_another_user_is_not_used(caches, monkeypatch):
    assert machine_code.cache_folder().parent == caches / "placer" / "kernels"
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert machine_code.cache_folder() is None


def test_numbas_cache_dir_is_restored(caches):
    (sgd,) = optimizer_rules.kernels_of(SGD())
    compiled_kernels.compile_kernel(sgd, True, 7, "float32")
    assert config.CACHE_DIR == ""


def test_machine_code_of_a_changed_rule_is_not_used(caches, monkeypatch):
    before = machine_code.cache_folder()
    package = shutil.copytree(Path(optimizer_rules.__file__).parent, caches / "tables")
    with (package / "optimizer_rules.py").open("a") as file:
        file.write("# changed")
    monkeypatch.setattr(machine_code, "__file__", str(package / "machine_code.py"))
    machine_code._digest.cache_clear()
    assert machine_code.cache_folder() not in (before, None)
    machine_code._digest.cache_clear()


@pytest.mark.parametrize(
    "module",
    [
        "placer.compiler.driver",
        "placer.command",
        "placer.plan.settings.training.optimizers",
        "placer.tables.dense",
        "placer.tables.optimizer_rules",
    ],
)
def test_only_the_first_update_imports_numba(module):
    code = f"import sys, {module}; print('numba' in sys.modules)"
    assert run(code) == "False\n"


def test_an_update_imports_neither_optax_nor_jax(tmp_path):
    code = UPDATE + "import sys; print({'jax', 'optax'} & {*sys.modules})"
    output = run(code, XDG_CACHE_HOME=str(tmp_path))
    assert output == "[-1.0, -1.0, -1.0]\nset()\n"
