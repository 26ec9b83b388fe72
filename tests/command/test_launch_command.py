"""`launch` runs the nodes of a build as processes, with the same placer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.small_models import load_model, two_layers

import placer
from placer.plan.plan import read_plan
from placer.plan.table_text import table_lines
from placer.system.caches.folder import user_cache
from placer.system.resources import find_file

PRINTING_SPEC = """\
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 1]", y: "float32[batch, 1]"}
data: {train: {source: "python:rows:rows", batch: 4}}
graph:
  - {name: h, op: fc, in: x, size: 1}
  - {name: loss, op: mean_squared_error, in: [h, y]}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""
CHECKOUT = Path(placer.__file__).parents[1]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "build"
    placer.compile(find_file("specs/digits.yaml"), folder, nodes={"worker": 1, "ps": 1})
    return folder


@pytest.mark.skipif(
    not (CHECKOUT / "cli.py").exists(), reason="cli.py is not installed"
)
def test_a_checkout_launches_from_any_folder_without_installation(
    build: Path, tmp_path: Path
) -> None:
    # Modules in the working folder must not shadow installed ones.
    (tmp_path / "json.py").write_text("raise ImportError('the wrong json')\n")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, CHECKOUT / "cli.py", "launch", build, "--json"]
    command += ["--steps=2", "--logs", "logs", "--history", "history.jsonl"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    result = json.loads(line)
    assert result["steps"] == 2
    assert sorted(result["metrics"]) == sorted(result["eval"]) == ["accuracy", "loss"]
    assert sorted(result["bytes_sent"]) == ["ps:0", "worker:0"]
    assert min(result["bytes_sent"].values()) > 0
    assert "\x1b" not in ended.stderr
    assert "evaluation after step 2 " in ended.stderr
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    times = [json.loads(line)["seconds"] for line in lines]
    assert 0 < times[0] < times[1]
    assert sorted(log.name for log in (tmp_path / "logs").iterdir()) == [
        "ps-0.log",
        "worker-0.log",
    ]
    plan = read_plan(build)
    log = (tmp_path / "logs" / "ps-0.log").read_text()
    assert log.startswith("\n".join(table_lines(plan, plan.node("ps:0"))))


@dataclass(frozen=True)
class Launched:
    """A run of two steps by processes.

    Attributes:
        result: its result.
        cache: placer's cache during the run.
        temporary: the folder of temporary files during the run.
    """

    result: placer.Result
    cache: Path
    temporary: Path


@pytest.fixture(scope="module")
def launched(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Launched:
    folder = tmp_path_factory.mktemp("launched")
    temporary, cache = folder / "temporary", folder / "cache"
    temporary.mkdir()
    with pytest.MonkeyPatch.context() as environment:
        if (kept := user_cache()) is not None:  # machine code is not compiled anew
            environment.setenv("NUMBA_CACHE_DIR", str(kept / "kernels"))
        environment.setattr(tempfile, "tempdir", str(temporary))
        environment.setenv("PLACER_CACHE", str(cache))
        return Launched(placer.launch(build, steps=2), cache, temporary)


def test_threads_of_one_process_compute_the_same_result(
    build: Path, launched: Launched
) -> None:
    threads = placer.launch(build, steps=2, in_process=True)
    assert threads.metrics == launched.result.metrics
    assert threads.eval == launched.result.eval


def test_logs_are_removed_after_a_successful_run(launched: Launched) -> None:
    assert list((launched.cache / "logs").iterdir()) == []
    assert list(launched.temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "'steps' must be at least 1, not 0"),
        (
            {"in_process": True, "logs": "logs"},
            "'logs' cannot be used with in-process nodes",
        ),
        (
            {"in_process": True, "progress": True},
            "'progress' cannot be used with in-process nodes",
        ),
        (
            {"in_process": True, "transport": "tcp"},
            "'transport' cannot be used with",
        ),
        ({"in_process": True, "base_port": 9000}, "'base_port' cannot be used with"),
        ({"base_port": 65535}, "2 nodes from base port 65535 need port 65536"),
        ({"deadline": float("nan")}, "'deadline' must be above 0 and at most 1e"),
        ({"join_timeout": float("inf")}, "'join_timeout' must be above 0"),
    ],
)
def test_options_that_cannot_be_combined_are_refused(
    build: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(placer.PlacerError, match=message):
        placer.launch(build, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"transport": "tcp"},
        {"join_timeout": 9},
        {"lost_after": 9},
        {"base_port": 9000},
        {"insecure_network": True},
    ],
    ids=str,
)
def test_options_about_other_processes_are_refused_for_one(
    one_process: Path, options: dict[str, Any]
) -> None:
    message = "has no effect on a run of one process: it concerns several processes"
    with pytest.raises(placer.PlacerError, match=message):
        placer.launch(one_process, **options)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    placer.compile(load_model(two_layers()), folder / "build", single_process=True)
    return folder / "build"


def test_files_that_a_run_must_not_write_are_refused(
    build: Path, tmp_path: Path
) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    for options, message in (
        ({"save_params": pipe}, "it is not a regular file"),
        ({"save_params": "/dev/null"}, "it is not a regular file"),
        ({"save_params": tmp_path}, "it is a folder"),
        ({"save_params": build / "plan.json"}, "it is inside the build folder"),
        ({"history": build / "new.jsonl"}, "it is inside the build folder"),
        ({"checkpoint": build / "new"}, "checkpoints to '.*inside the build folder"),
        ({"record_order": build / "new"}, "orders to '.*inside the build folder"),
        ({"logs": build / "new"}, "logs to '.*inside the build folder"),
        ({"tensorboard": build / "new"}, "TensorBoard to '.*inside the build folder"),
        (
            {"history": file, "save_params": file},
            "the run writes another file to this path",
        ),
        ({"history": tmp_path / "no" / "file"}, "the folder .* does not exist"),
    ):
        with pytest.raises(placer.PlacerError, match=message):
            placer.launch(build, **options)
        assert not (build / "new").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_saved_parameters_follow_links_and_get_the_mode_of_other_files(
    build: Path, tmp_path: Path
) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(file)
    mask = os.umask(0o027)
    try:
        placer.launch(build, steps=1, save_params=link, in_process=True)
    finally:
        os.umask(mask)
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    file.chmod(0o604)
    placer.launch(build, steps=1, save_params=file, in_process=True)
    assert file.stat().st_mode & 0o777 == 0o604


def test_prints_of_a_model_do_not_mix_with_the_result(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text(
        "print('loaded')\n"
        "def rows():\n    return [{'x': [i], 'y': [i]} for i in range(8)]\n"
    )
    (tmp_path / "loud.yaml").write_text(PRINTING_SPEC)
    placer.compile(tmp_path / "loud.yaml", tmp_path / "build")
    command = ["launch", str(tmp_path / "build"), "--in-process", "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "placer.command", *command],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ended.stdout)["steps"] == 2
    assert "loaded" in ended.stderr


def test_a_closed_stdout_causes_no_error(build: Path) -> None:
    command = f"'{sys.executable}' -m placer.command show '{build}' >&-"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("content", ["", "{}", '{"spec": 1, "ops": {}}'])
def test_damaged_sources_are_reported(
    build: Path, tmp_path: Path, content: str
) -> None:
    copy = tmp_path / "build"
    shutil.copytree(build, copy)
    (copy / "sources.json").write_text(content)
    for command in (["explain", str(copy), "loss"], ["launch", str(copy)]):
        ended = subprocess.run(
            [sys.executable, "-m", "placer.command", *command],
            capture_output=True,
            text=True,
        )
        assert ended.returncode != 0
        assert "sources.json' cannot be read" in ended.stderr
        assert "Traceback" not in ended.stderr
