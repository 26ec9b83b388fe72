"""The nodes of a process share the rows of its sources."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from safetensors.numpy import load_file

import placer
from placer.channel.interface import Aborted
from placer.errors import DataError, RunError
from placer.plan.plan import Plan, read_plan
from placer.readers import Rows
from placer.readers.rows import LoadedRows
from placer.runtime.control.options import Options
from placer.runtime.control.shared_rows import SharedRows
from placer.runtime.process.threads import run_in_threads
from placer.runtime.training_loop import training_node

SPEC = """\
name: shared
seed: 1
nodes: {worker: {count: 2}, ps: {count: 1}}
inputs: {x: "float32[batch, 2]", label: "float32[batch, 1]"}
data:
  train: {source: "python:rows:train", batch: 8, shuffle: true}
  eval: {source: "python:rows:test", batch: 8}
graph:
  - {name: h, op: fc, in: x, size: 1, place: /node:worker}
  - {name: loss, op: mean_squared_error, in: [h, label], place: /node:worker}
train:
  minimize: loss
  threads: 3
  epochs: 2
  optimizer: {op: adam, learning_rate: 0.1, place: /node:ps/cpu}
"""
YIELDED = """\
import placer

def rows(name, count):
    with open(placer.data_folder() / "calls", "a") as file:
        file.write(name + "\\n")
    return [{"x": [i % 5, i % 3], "label": [i % 7]} for i in range(count)]

def train():
    yield from rows("train", 48)

def test():
    yield from rows("test", 24)
"""
INDEXED = (
    YIELDED.replace("yield from rows(", "return Rows(")
    + """\

class Rows:
    def __init__(self, *args):
        self.rows = rows(*args)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]
"""
)


def compile_case(folder: Path, module: str = YIELDED, batch: int = 12) -> Plan:
    (folder / "rows.py").write_text(module)
    text = SPEC.replace("batch: 8", f"batch: {batch}")
    (folder / "model.yaml").write_text(text)
    placer.compile(folder / "model.yaml", folder / "build")
    return read_plan(folder / "build")


@pytest.mark.parametrize("module", [YIELDED, INDEXED], ids=["yielded", "indexed"])
def test_a_process_calls_each_source_once(tmp_path: Path, module: str) -> None:
    plan = compile_case(tmp_path, module)
    saved = tmp_path / "params.safetensors"
    run_in_threads(tmp_path / "build", Options(save_params=saved))
    calls = (tmp_path / "calls").read_text().split()
    assert [*plan.processes] == ["worker:0", "worker:1", "ps:0"]
    assert sorted(calls) == ["test", "test", "train", "train"]
    placer.compile(tmp_path / "model.yaml", tmp_path / "build", single_process=True)
    alone = tmp_path / "alone.safetensors"
    run_in_threads(tmp_path / "build", Options(save_params=alone))
    expected = load_file(alone)
    for name, values in load_file(saved).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5)


def test_the_threads_of_a_process_have_the_same_rows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_case(tmp_path)
    opened: dict[tuple[str, str], Rows] = {}
    open_batches = training_node.open_batches

    def note(execution, data, phase):  # type: ignore[no-untyped-def]
        batches = open_batches(execution, data, phase)
        opened[execution.me.name, phase] = batches.rows
        return batches

    monkeypatch.setattr(training_node, "open_batches", note)
    run_in_threads(tmp_path / "build", Options(steps=1))
    for phase in ("training", "evaluation"):
        first, other = opened["worker:0.0", phase], opened["worker:1.0", phase]
        assert opened["worker:0.1", phase] is opened["worker:0.2", phase] is first
        assert opened["worker:1.1", phase] is opened["worker:1.2", phase] is other
        assert first is not other
        assert opened["ps:0", phase] is None


def test_a_source_that_fails_is_the_error_of_the_run(tmp_path: Path) -> None:
    module = YIELDED.replace("yield from", "raise KeyError('x')\n    yield from")
    compile_case(tmp_path, module)
    with pytest.raises(RunError) as caught:
        run_in_threads(tmp_path / "build")
    assert type(caught.value) is RunError
    assert caught.value.message.startswith("reader python:rows:train failed at row 0")


THREADS = 4


def in_threads(call: Callable[[int], Rows | BaseException]) -> list[object]:
    with ThreadPoolExecutor(THREADS) as pool:
        return [*pool.map(call, range(THREADS))]


def test_the_first_node_that_asks_opens_a_source_for_all() -> None:
    shared, start = SharedRows(), Barrier(THREADS)
    reads: list[int] = []

    def ask(number: int) -> Rows:
        def read() -> Rows:
            reads.append(number)
            return LoadedRows({}, 3)

        start.wait()
        return shared.of_phase("training", f"worker:0.{number}", read)

    rows = in_threads(ask)
    assert len(reads) == 1
    assert all(each is rows[0] for each in rows)


def test_a_source_that_fails_is_the_error_of_one_node() -> None:
    shared, start = SharedRows(), Barrier(THREADS)

    def ask(number: int) -> BaseException:
        def read() -> Rows:
            raise DataError(f"no file for {number}")

        start.wait()
        with pytest.raises((DataError, Aborted)) as caught:
            shared.of_phase("training", f"worker:0.{number}", read)
        return caught.value

    errors = in_threads(ask)
    (failed,) = (i for i, each in enumerate(errors) if type(each) is DataError)
    others = [each.cause for each in errors if isinstance(each, Aborted)]
    assert len(others) == THREADS - 1
    assert {str(each) for each in others} == {
        f"worker:0.{failed}: no file for {failed}"
    }
