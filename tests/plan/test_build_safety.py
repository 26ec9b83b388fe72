"""The safety of build folders: no file is run without a hash in the plan, and no file
is written outside of the folder."""

import importlib.util
import json
import marshal
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from support.small_models import load_model, two_layers

from placer.compiler.driver import compile as compile_model
from placer.errors import BuildError, SpecError
from placer.plan.plan import Plan, check_files, read_plan, to_json, with_digest
from placer.plan.settings.data.source import Data
from placer.readers import Column, open_source
from placer.runtime.node.program_file import load_program

ROWS = """
import first


def train():
    import late
    for _ in range(8):
        yield {"x": [first.X] * 16, "y": [late.Y] * 4}
"""
TEXT = two_layers().replace("npz:rows.npz", "python:rows:train")
COLUMNS = [Column("x", "float32", (16,)), Column("y", "float32", (4,))]


def write_spec(folder):
    """Write a source, the modules that it imports, and one that it does not import."""
    folder.mkdir()
    (folder / "rows.py").write_text(ROWS)
    (folder / "first.py").write_text("import json\nfrom second import X\n")
    (folder / "second.py").write_text("X = 2\n")
    (folder / "late.py").write_text(f"Y = 3\nif not Y:\n    import {'z' * 300}\n")
    (folder / "unasked.py").write_text("Z = 4\n")
    return folder


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("safety")
    compile_model(load_model(TEXT, write_spec(folder / "spec")), folder / "build")
    return folder / "build"


@pytest.fixture
def build(compiled, tmp_path):
    """A copy of a build that a test may change."""
    return shutil.copytree(compiled, tmp_path / "build")


def rewrite_plan(build, **changed):
    """Write the plan with other fields, and the digest of the result."""
    plan = msgspec.json.decode((build / "plan.json").read_bytes(), type=Plan)
    plan = with_digest(msgspec.structs.replace(plan, **changed))
    (build / "plan.json").write_text(to_json(plan))
    return plan


def refusal(build):
    with pytest.raises(BuildError) as caught:
        read_plan(build)
    return caught.value.message.replace(str(build), "BUILD")


def plant_bytecode(file, text):
    """Write bytecode that Python would accept as that of the file."""
    cached = Path(importlib.util.cache_from_source(file))
    cached.parent.mkdir(exist_ok=True)
    status = file.stat()
    stamp = struct.pack("<III", 0, int(status.st_mtime), status.st_size)
    code = marshal.dumps(compile(text, file, "exec"))
    cached.write_bytes(importlib.util.MAGIC_NUMBER + stamp + code)


def files_of(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


# loading


def test_planted_bytecode_of_a_program_is_not_run_and_none_is_written(build):
    plan = read_plan(build)
    before = files_of(build)
    load_program(build, plan, plan.node("worker:0"))
    assert files_of(build) == before
    plant_bytecode(build / "worker/program.py", "raise SystemExit('planted')")
    plan = read_plan(build)
    step, evaluate, *_ = load_program(build, plan, plan.node("worker:0"))
    assert step.__code__.co_filename == str(build / "worker/program.py")
    assert evaluate is None


def test_a_program_that_changed_after_the_check_is_not_run(build):
    plan = read_plan(build)
    (build / "worker/program.py").write_text("raise SystemExit('changed')")
    with pytest.raises(BuildError, match="was changed after it was compiled"):
        load_program(build, plan, plan.node("worker:0"))


def test_the_modules_that_a_source_imports_are_in_the_build(build):
    plan = read_plan(build)
    assert plan.modules == ("rows", "first", "late", "second")
    assert {f"{module}.py" for module in plan.modules} < set(plan.files)
    rows = open_source(Data("python:rows:train"), COLUMNS, build)
    assert rows.take([0])["x"].tolist() == [[2] * 16]
    assert not list(build.rglob("__pycache__"))


def test_planted_bytecode_of_a_module_is_not_run(build):
    for module in read_plan(build).modules:
        plant_bytecode(build / f"{module}.py", "raise SystemExit('planted')")
    rows = open_source(Data("python:rows:train"), COLUMNS, build)
    assert rows.rows == 8


@pytest.mark.parametrize("module", ["rows", "second", "late"])
def test_a_module_of_a_build_that_changed_is_not_run(module, build):
    (build / f"{module}.py").write_text("raise SystemExit('changed')")
    with pytest.raises(
        BuildError, match=f"{module}.py' was changed after it was compiled"
    ):
        open_source(Data("python:rows:train"), COLUMNS, build)


# refusals


@pytest.mark.parametrize(
    "path", ["worker-0/functools.py", "jax.py", "notes.txt", "jax/__init__.py"]
)
def test_an_added_file_is_refused(path, build):
    (build / path).parent.mkdir(exist_ok=True)
    (build / path).write_text("mine")
    assert refusal(build) == f"'BUILD/{path}' is not part of the build"


def test_a_linked_folder_is_refused(build, tmp_path):
    (tmp_path / "other").mkdir()
    (build / "jax").symlink_to(tmp_path / "other")
    assert refusal(build) == "'BUILD/jax' is not part of the build"


@pytest.mark.parametrize("path", ["worker/program.py", "second.py"])
def test_files_that_are_run_must_have_a_hash(path, build):
    plan = read_plan(build)
    (build / path).write_text("raise SystemExit('changed')")
    rewrite_plan(build, files={k: v for k, v in plan.files.items() if k != path})
    assert refusal(build) == (
        f"'BUILD/plan.json' has no hash for '{path}', which nodes would run"
    )


@pytest.mark.parametrize(
    "path", ["../out.py", "/out.py", "worker-0/../out.py", ".", "out\0.py", "\x1b[2J"]
)
def test_a_path_that_leaves_the_folder_is_refused(path, build):
    plan = read_plan(build)
    rewrite_plan(build, files={**plan.files, path: "0" * 64})
    assert refusal(build) == f"'{path}' is outside of the build 'BUILD'"


@pytest.mark.parametrize("name", ["plan.json", "sources.json"])
def test_a_plan_or_sources_behind_a_link_are_refused(name, build, tmp_path):
    kept = (build / name).rename(tmp_path / name)
    (build / name).symlink_to(kept)
    assert refusal(build) == (
        f"'BUILD/{name}' is a link; links are not allowed in a build folder"
    )


@pytest.mark.parametrize(
    "path", ["plan.json", "sources.json", "rows.py", "ps-0/program.py", "ps-0", ""]
)
def test_a_path_writable_by_everybody_is_refused(path, build):
    place = build / path
    place.chmod(place.stat().st_mode | 0o002)
    assert refusal(build) == (
        f"'{'BUILD/' + path if path else 'BUILD'}' is writable by everybody"
    )


def another_group():
    """A group other than the user's own that a file of the user may belong to."""
    if os.geteuid() == 0:
        return 54_321
    groups = {each for each in os.getgroups() if each != os.getgid()}
    return min(groups, default=None)


@pytest.mark.parametrize("path", ["plan.json", "rows.py", "ps-0", ""])
def test_a_path_writable_by_a_shared_group_is_refused(path, build):
    group = another_group()
    if group is None:
        pytest.skip("this user is in one group only")
    place = build / path
    os.chown(place, -1, group)
    place.chmod(place.stat().st_mode | 0o020)
    shown = "BUILD/" + path if path else "BUILD"
    assert refusal(build).startswith(f"'{shown}' is writable by the group ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("path", ["plan.json", "worker/program.py", "ps-0", "", ".."])
def test_a_path_of_another_user_is_refused(path, build):
    place = (build / path).resolve()
    os.chown(place, 54_321, -1)
    assert "belongs to another user, with the number 54321" in refusal(build)


@pytest.mark.parametrize(("mode", "is_safe"), [(0o777, False), (0o1777, True)])
def test_a_parent_folder_writable_by_everybody_must_be_sticky(
    mode, is_safe, build, tmp_path
):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    moved = build.rename(shared / "build")
    if is_safe:
        assert read_plan(moved)
        (tmp_path / "link").symlink_to(moved)
        assert read_plan(tmp_path / "link")
    else:
        with pytest.raises(BuildError, match="shared' is writable by every") as caught:
            read_plan(moved)
        assert (
            "move it to a folder that only you can write to, such" in caught.value.hint
        )
        (tmp_path / "link").symlink_to(moved)
        assert "shared' is writable by everybody" in refusal(tmp_path / "link")


def test_permissions_in_trusted_folders_are_not_checked(build, tmp_path, monkeypatch):
    (build / "rows.py").chmod(0o666)
    build.chmod(0o777)
    monkeypatch.setenv("PLACER_TRUST", f"/elsewhere:{tmp_path / 'other'}")
    assert "is writable by everybody" in refusal(build)
    monkeypatch.setenv("PLACER_TRUST", f"/elsewhere:{tmp_path}")
    assert read_plan(build)
    (build / "rows.py").write_text("")
    assert refusal(build) == "'BUILD/rows.py' was changed after it was compiled"


# the content of a plan, with a valid digest


def refusal_of_change(build, change):
    """Write a changed plan with its digest; return the message that refuses it."""
    tree = json.loads((build / "plan.json").read_bytes())
    change(tree)
    plan = msgspec.json.decode(json.dumps(tree), type=Plan)
    (build / "plan.json").write_text(to_json(with_digest(plan)))
    return refusal(build).removeprefix("'BUILD/plan.json' is not a valid plan: ")


def put(*path, value):
    def change(tree):
        for key in path[:-1]:
            tree = tree[key]
        tree[path[-1]] = value

    return change


TABLE = ("nodes", 2, "tables", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("name", value="\x1b]0;x\x07"), r"'\x1b]0;x\x07' is not a valid name of the model"),
        (
            put("nodes", 0, "name", value="../../x:0"),
            "node '../../x:0': '../../x:0' is not a valid name of a node",
        ),
        (
            put("settings", "train", "eval", value={"every": "10s"}),
            "'every' of an evaluation must be in steps or epochs, not in seconds",
        ),
        (
            put("settings", "train", "checkpoint", value={"every": "soon"}),
            "'soon' is not an interval",
        ),
        (
            put("settings", "train", "early_stopping", value={"metric": "x", "mode": "min"}),
            "'x' is not a metric",
        ),
        (put("nodes", 1, "name", value="worker:0"), "node 'worker:0' is defined twice"),
        (
            put("parameters", 0, "init", value={"file": "w.safetensors"}),
            "parameter 'h.w': its file 'w.safetensors' is not in the build",
        ),
        (
            put("parameters", 0, "dtype", value="float31"),
            "parameter 'h.w' has the unknown dtype 'float31'",
        ),
        (
            put(*TABLE, "rule", value="sdg"),
            "node 'ps:0': table 'dense': unknown optimizer 'sdg'; did you mean 'sgd'?",
        ),
        (
            put(*TABLE, "blocks", 0, "parameter", value="no"),
            "node 'ps:0': table 'dense': block 'h.w' belongs to the unknown parameter 'no'",
        ),
        (
            put(*TABLE, "blocks", 0, "stop", value=99_999),
            "node 'ps:0': table 'dense': block 'h.w' covers elements 0 to 99999, but the parameter has 256",
        ),
        (put(*TABLE, "devices", value="gpu:0"), "node 'ps:0': table 'dense': it has no 'gpu:0'"),
        (put("step_edges", 0, "targets", value=["ps:9"]), "edge 1: 'ps:9' is not a node of this plan"),
        (put("step_edges", 1, "id", value=1), "edge '1' is defined twice"),
        (put("parameters", 0, "holders", value=[]), "no node stores 'h.w' from element 0"),
        (
            put("nodes", 0, "device_bytes", value={"least": 1}),
            "node 'worker:0': 'least' is not a valid name of a device",
        ),
        (
            put("nodes", 0, "devices", value={"least": 0}),
            "node 'worker:0': least is 0, and must be at least 1",
        ),
        (
            put("train", "stream", value={"files": 1}),
            "train: a stream of a Python function needs 'lanes' and 'rows', and python:rows:train has no files",
        ),
        (
            put("train", "source", value="python:other:train"),
            "train: the module of 'python:other:train' is not in the build",
        ),
    ],
)  # fmt: skip
def test_an_inconsistent_plan_is_refused(change, message, build):
    assert refusal_of_change(build, change) == message


@pytest.mark.parametrize(
    "init",
    [{"file": "/etc/passwd"}, {"file": "../w.safetensors"}, {"uniform": [2, 1]}, "no"],
)
def test_an_initializer_that_is_not_valid_is_refused(init, build):
    text = (build / "plan.json").read_text()
    written = json.loads(text)["parameters"][0]["init"]
    assert json.dumps(written) in text
    wrong = text.replace(json.dumps(written), json.dumps(init))
    (build / "plan.json").write_text(wrong)
    with pytest.raises(BuildError, match=r"plan.json' cannot be read: .*init"):
        read_plan(build)


@pytest.mark.parametrize("depth", [40, 300])
def test_a_deeply_nested_schedule_is_refused(depth, build):
    rate = 0.1
    for _ in range(depth):
        rate = {"warmup": {"steps": 1, "then": rate}}
    message = "node 'ps:0': table 'dense': it is nested deeper than 32 levels"
    assert refusal_of_change(build, put(*TABLE, "learning_rate", value=rate)) == message


@pytest.mark.parametrize("name", ["plan.json", "sources.json"])
def test_a_deeply_nested_file_cannot_be_read(name, build):
    text = (build / name).read_text()
    for deep in ("[" * 5000, text.replace("{", '{"name":' + "[" * 5000, 1)):
        (build / name).write_text(deep)
        with pytest.raises(BuildError, match=f"{name}' cannot be read: "):
            read_plan(build)


@pytest.mark.parametrize(
    "content",
    [
        '{"spec": "", "ops": {}}',
        '{"spec": "../a\\u0000.yaml", "ops": {}}',
        '{"spec": "../a.yaml", "ops": {"h": [0, 1]}}',
        '{"spec": "../a.yaml", "ops": {"\\u001b]0;x": [1, 1]}}',
        '{"spec": "../a.yaml", "ops": {}, "more": 1}',
    ],
)
def test_invalid_sources_are_refused(content, build):
    (build / "sources.json").write_text(content)
    with pytest.raises(BuildError, match=r"sources.json' cannot be read: "):
        read_plan(build)


# writing


def test_only_the_owner_may_write_to_a_compiled_build(tmp_path):
    spec = write_spec(tmp_path / "spec")
    old = os.umask(0)
    try:
        compile_model(load_model(TEXT, spec), tmp_path / "build")
    finally:
        os.umask(old)
    assert read_plan(tmp_path / "build").name == "small"
    modes = {p.stat().st_mode & 0o022 for p in (tmp_path / "build").rglob("*")}
    assert modes == {0}


@pytest.mark.parametrize("name", ["worker-0/program.py", "plan.json", "rows.py"])
def test_a_link_is_replaced_and_not_written_through(name, build, tmp_path):
    outside = tmp_path / "mine.txt"
    outside.write_bytes((build / name).read_bytes())
    before = outside.read_bytes()
    (build / name).unlink()
    (build / name).symlink_to(outside)
    text = TEXT.replace("epochs: 1", "epochs: 2")
    compile_model(load_model(text + "seed: 3\n", write_spec(tmp_path / "spec")), build)
    assert outside.read_bytes() == before
    assert not (build / name).is_symlink()
    assert read_plan(build).settings.train.epochs == 2


def test_a_linked_folder_is_not_written_into(build, tmp_path):
    outside = (build / "worker-0").rename(tmp_path / "outside")
    (outside / "program.py").write_text("mine")
    (build / "worker-0").symlink_to(outside)
    before = (build / "worker-1/program.py").read_text()
    with pytest.raises(BuildError, match="worker-0' is a link"):
        compile_model(load_model(two_layers(batch=16)), build)
    assert (outside / "program.py").read_text() == "mine"
    assert (build / "worker-1/program.py").read_text() == before


@pytest.mark.parametrize("edit", ["program", "plan", "version"])
def test_recompiling_an_edited_build_removes_old_programs(edit, build):
    if edit == "program":
        (build / "worker-1/program.py").write_text("# mine\n")
    elif edit == "plan":
        plan = (build / "plan.json").read_text()
        (build / "plan.json").write_text(plan.replace('"epochs": 1', '"epochs": 2'))
    else:
        plan = json.loads((build / "plan.json").read_text())
        (build / "plan.json").write_text(json.dumps({**plan, "version": 0}))
    compile_model(load_model(two_layers()), build)
    assert not (build / "rows.py").exists()
    nodes = "{worker: {count: 1}, ps: {count: 1}}"
    (build / "worker-1/program.py").write_text("# mine\n")
    compile_model(load_model(two_layers(nodes=nodes)), build)
    assert files_of(build) == [
        "graph.txt",
        "plan.json",
        "ps-0",
        "ps-0/program.py",
        "sources.json",
        "worker-0",
        "worker-0/program.py",
    ]
    read_plan(build)


def test_an_edited_plan_cannot_remove_files_outside_of_the_build(build, tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    plan = json.loads((build / "plan.json").read_text())
    plan["files"] |= {"../mine.txt": "", str(mine): ""}
    (build / "plan.json").write_text(json.dumps(plan))
    compile_model(load_model(two_layers()), build)
    assert mine.read_text() == "mine"


def test_a_build_with_an_unknown_file_is_not_overwritten(build):
    (build / "notes.txt").write_text("mine")
    before = (build / "plan.json").read_bytes()
    with pytest.raises(BuildError, match=r"notes\.txt' is not part of the build"):
        compile_model(load_model(two_layers()), build)
    assert (build / "notes.txt").read_text() == "mine"
    assert (build / "plan.json").read_bytes() == before


# interrupted writing


KILLED = """
import os, signal, sys
from placer.compiler.driver import compile
from placer.plan import write
spec, out, name, calls = sys.argv[1:]
original, paths = getattr(write, name), []
def cut(folder, path, *content):
    paths.append(path)
    if len(paths) > int(calls):
        if content:
            original(folder, path, content[0][: len(content[0]) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    original(folder, path, *content)
setattr(write, name, cut)
compile(spec, out)
"""


@pytest.mark.parametrize(
    ("name", "calls"),
    [("write_unfinished", 0), ("write_unfinished", 3), ("finish_file", 2)],
)
@pytest.mark.parametrize("before", ["new", "build"])
def test_files_of_a_killed_compilation_are_removed(name, calls, before, tmp_path):
    spec, out = tmp_path / "spec.yaml", tmp_path / "out"
    spec.write_text(two_layers())
    if before == "build":
        compile_model(load_model(two_layers(train="  slicing: {min_block: 8}")), out)
    command = [sys.executable, "-c", KILLED, spec, out, name, str(calls)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert list(out.rglob("*.unfinished"))
    with pytest.raises(BuildError):
        read_plan(out)
    compile_model(spec, out)
    check_files(out, read_plan(out))


def two_builds(tmp_path):
    """The same spec twice: a small one, and one with a module of 300,000 bytes."""
    small, large = write_spec(tmp_path / "small"), write_spec(tmp_path / "large")
    (large / "first.py").write_text("from second import X\n" + "#" * 300_000)
    return load_model(TEXT, small), load_model(TEXT, large)


@contextmanager
def file_size_limit(size):
    """Limit the size of files that this process can write."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_build_that_cannot_be_written_leaves_an_empty_folder(tmp_path):
    _, large = two_builds(tmp_path)
    with (
        file_size_limit(200_000),
        pytest.raises(BuildError, match=r"cannot write '.*out': .*File too large"),
    ):
        compile_model(large, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    compile_model(large, tmp_path / "out")
    check_files(tmp_path / "out", read_plan(tmp_path / "out"))


def test_a_build_that_cannot_be_written_leaves_the_old_one(tmp_path):
    small, large = two_builds(tmp_path)
    plan = compile_model(small, tmp_path / "out")
    with file_size_limit(200_000), pytest.raises(BuildError, match="File too large"):
        compile_model(large, tmp_path / "out")
    assert read_plan(tmp_path / "out") == plan


@pytest.fixture
def small_disk(tmp_path):
    """A file system that holds 64 KiB, where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    line = [mount, "-t", "tmpfs", "-o", "size=64k", "placer-test", folder]
    if mount is None or subprocess.run(line, capture_output=True).returncode:
        pytest.skip("this process may not mount a file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_build_is_written_after_a_full_disk_has_space_again(small_disk, tmp_path):
    small, large = two_builds(tmp_path)
    out = small_disk / "out"
    with pytest.raises(BuildError, match="No space left on device"):
        compile_model(large, out)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(56 << 10))
    with pytest.raises(BuildError, match="No space left on device"):
        compile_model(small, out)
    filler.unlink()
    plan = compile_model(small, out)
    assert read_plan(out) == plan


# modules beside the spec


@pytest.mark.parametrize("change", ["missing", "not UTF-8"])
def test_an_unreadable_module_is_named(change, tmp_path):
    spec = write_spec(tmp_path / "spec")
    read = load_model(TEXT, spec)
    if change == "missing":
        (spec / "second.py").unlink()
    else:
        (spec / "second.py").write_bytes(b"X = '\xe9'\n")
    with pytest.raises(BuildError, match=r"cannot read module '.*second\.py'"):
        compile_model(read, tmp_path / "build")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"X = '\xe9'\n", r"second\.py cannot be read as UTF-8 text"),
        (b"X = = 2\n", r"second\.py cannot be read as Python: .*line 1"),
        (b"X = " + b"-" * 50_000 + b"1", r"second\.py cannot be read as Python: "),
        (b"X = " + b"a." * 50_000 + b"b", r"second\.py cannot be read as Python: "),
    ],
)
def test_a_module_that_is_not_python_is_an_error_in_the_spec(
    content, message, tmp_path
):
    spec = write_spec(tmp_path / "spec")
    (spec / "second.py").write_bytes(content)
    with pytest.raises(SpecError, match=message) as caught:
        load_model(TEXT, spec)
    assert caught.value.span.line == 8


def test_modules_that_import_each_other_are_listed_once(tmp_path):
    spec = write_spec(tmp_path / "spec")
    (spec / "second.py").write_text("import rows\nimport first\nX = 2\n")
    assert load_model(TEXT, spec).modules == ("rows", "first", "late", "second")
