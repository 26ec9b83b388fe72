"""GPUs of a machine are divided among the processes of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.real_runs import launch

from placer.compiler.driver import compile
from placer.plan.plan import Plan
from placer.runtime.process import gpus
from placer.runtime.process.gpus import (
    FRACTION,
    VISIBLE,
    Share,
    count_gpus,
    divide_gpus,
    take_gpus,
    visible_gpus,
)

FOUR = ["0", "1", "2", "3"]
LOCAL = {"worker:0": "a:1", "worker:1": "a:2", "ps:0": "a:3"}

MODULE = """\
import os

print("has", os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("XLA_CLIENT_MEM_FRACTION"))


def double(params, state, x, rng, training):
    return 2 * x, state
"""
SPEC = """\
nodes: {worker: {count: 2, devices: {gpu: 1}}, ps: {count: 1}}
inputs: {image: "float32[batch, 64]", label: "int32[batch]"}
data: {train: {source: "sklearn:digits", batch: 64}}
graph:
  - place: /node:worker/gpu
    ops:
      - {name: x, op: call, fn: "doubling:double", in: image, batch: rows, out: "float32[batch, 64]"}
      - {name: logits, op: fc, in: x, size: 10}
      - {name: loss, op: softmax_cross_entropy, in: [logits, label]}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1, place: /node:ps/cpu}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpus")
    (folder / "doubling.py").write_text(MODULE)
    (folder / "model.yaml").write_text(SPEC)
    return folder


@pytest.fixture(scope="module")
def plan(folder: Path) -> Plan:
    """A plan of two workers with a GPU each, and a server without."""
    return compile(folder / "model.yaml", folder / "build")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that says nothing about GPUs; what a test sets in it is undone."""
    for name in (VISIBLE, *gpus._MEMORY):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def taken() -> tuple[str | None, str | None]:
    """Return the GPUs that this process has, and which part of their memory."""
    return os.environ.get(VISIBLE), os.environ.get(FRACTION)


def test_processes_have_gpus_of_their_own_if_there_are_enough() -> None:
    shares = divide_gpus({"worker:0": 1, "worker:1": 2, "ps:0": 0, "heter:0": 1}, FOUR)
    assert shares == {
        "worker:0": Share(("0",), 1),
        "worker:1": Share(("1", "2"), 1),
        "heter:0": Share(("3",), 1),
    }


def test_else_they_share_them_evenly() -> None:
    needs = {f"worker:{i}": 2 for i in range(3)}
    assert divide_gpus(needs, FOUR) == {
        "worker:0": Share(("0", "1"), 2),
        "worker:1": Share(("2", "3"), 1),
        "worker:2": Share(("0", "1"), 2),
    }
    one = divide_gpus({f"worker:{i}": 1 for i in range(5)}, ["0"])
    assert {*one.values()} == {Share(("0",), 5)}


@pytest.mark.parametrize(
    ("needs", "machine"),
    [({"worker:0": 2, "ps:0": 0}, FOUR), ({"w:0": 3, "w:1": 1}, ["0", "1"]), ({}, [])],
    ids=["one process", "more than there are", "no process"],
)
def test_there_may_be_nothing_to_divide(
    needs: dict[str, int], machine: list[str]
) -> None:
    assert divide_gpus(needs, machine) == {}


def test_a_process_takes_its_gpus_and_a_part_of_their_memory(
    plan: Plan, environment: pytest.MonkeyPatch
) -> None:
    assert [count_gpus(nodes) for nodes in plan.processes.values()] == [1, 1, 0]
    environment.setattr(gpus, "visible_gpus", lambda: ["0"])
    take_gpus(plan, "worker:1", LOCAL, launched=True)
    assert taken() == ("0", "0.3750")


def test_a_process_takes_no_part_of_memory_of_its_own_gpu(
    plan: Plan, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv(VISIBLE, "GPU-5a, GPU-7b")
    take_gpus(plan, "worker:1", LOCAL, launched=True)
    assert taken() == ("GPU-7b", None)


@pytest.mark.parametrize("variable", gpus._MEMORY)
def test_what_the_user_says_about_memory_stays(
    variable: str, plan: Plan, environment: pytest.MonkeyPatch
) -> None:
    environment.setattr(gpus, "visible_gpus", lambda: ["0"])
    environment.setenv(variable, "0.2")
    take_gpus(plan, "worker:0", LOCAL, launched=True)
    assert os.environ[variable] == "0.2"
    assert taken() == ("0", "0.2" if variable == FRACTION else None)


def test_processes_of_other_machines_share_nothing(
    plan: Plan, environment: pytest.MonkeyPatch
) -> None:
    environment.setattr(gpus, "visible_gpus", lambda: ["0"])
    elsewhere = {**LOCAL, "worker:1": "b:1"}
    take_gpus(plan, "worker:0", elsewhere, launched=True)
    assert taken() == (None, None)


def test_a_process_started_by_hand_keeps_the_gpus_that_the_user_gave_it(
    plan: Plan, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv(VISIBLE, "2")
    take_gpus(plan, "worker:1", LOCAL, launched=False)
    assert taken() == ("2", None)


@pytest.mark.parametrize(
    ("listed", "names"), [("1,3", ["1", "3"]), ("", []), ("2,-1,3", ["2"])]
)
def test_the_variable_lists_the_gpus(
    listed: str, names: list[str], environment: pytest.MonkeyPatch
) -> None:
    environment.setenv(VISIBLE, listed)
    assert visible_gpus() == names


def test_without_it_each_device_file_of_the_driver_is_one(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("nvidia0", "nvidia5", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    environment.setattr(gpus, "_DEVICES", tmp_path)
    assert visible_gpus() == ["0", "1"]


def test_launched_processes_have_their_gpus_before_jax_starts(
    folder: Path, plan: Plan, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv(VISIBLE, "91,92")  # which no machine has: the run ends there
    ended = launch(folder / "build", "--steps=1")
    assert ended.status == 1
    lines = [line for line in ended.err.splitlines() if "| has " in line]
    assert sorted(lines) == ["worker:0| has 91 None", "worker:1| has 92 None"]
