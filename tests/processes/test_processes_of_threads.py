"""Several nodes as threads of one process: `train.threads`, and heter nodes."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from support.real_runs import (
    END_TIMEOUT,
    INDEXED_READER,
    MANY_STEPS,
    compile_small,
    launch,
    node_processes,
    nodes_by_hand,
    running_launch,
)
from support.trace_file import read_trace

from placer.checkpoint.folder import list_checkpoints
from placer.compiler.driver import compile
from placer.plan.plan import read_plan
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

ASYNC = "place: /node:ps/cpu, update: {async: {max_staleness: 3, max_merge: 2}}"


def compile_threads(
    folder: Path, update: str = "place: /node:ps/cpu", **options: object
) -> Path:
    """Compile a small model for two workers of two threads, and return the build."""
    compile_small(folder, workers=2, **options)
    spec = folder / "small.yaml"
    text = spec.read_text().replace("place: /node:ps/cpu", update)
    spec.write_text(text.replace("epochs: 1", "epochs: 1\n  threads: 2"))
    compile(spec, folder / "threads")
    return folder / "threads"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_threads(tmp_path_factory.mktemp("threads"), size=512)


@pytest.fixture(scope="module")
def free_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_threads(tmp_path_factory.mktemp("free"), ASYNC)


def test_processes_of_threads_give_the_bits_of_one_process(
    build: Path, tmp_path: Path
) -> None:
    saved = [tmp_path / f"{how}.safetensors" for how in ("processes", "threads")]
    trace = tmp_path / "trace.json"
    done = launch(build, f"--save-params={saved[0]}", f"--trace={trace}")
    assert done.status == 0, done.err
    result = run_in_threads(build, Options(save_params=saved[1]))
    assert saved[0].read_bytes() == saved[1].read_bytes()
    # Between threads of a process nothing is sent.
    sent = json.loads(done.out)["bytes_sent"]
    assert sent["worker:1.1"] < sent["worker:1.0"] / 4  # metrics only
    assert sent["worker:1.0"] == pytest.approx(result.bytes_sent["worker:1.0"], rel=0.2)
    traced = read_trace(trace)
    assert traced.nodes == [node.name for node in read_plan(build).nodes]


def test_processes_of_threads_are_started_by_their_programs(build: Path) -> None:
    with nodes_by_hand(build, "--steps=2", programs=True) as runs:
        assert sorted(runs) == ["ps:0", "worker:0", "worker:1"]
        ended = {node: run.wait(END_TIMEOUT) for node, run in runs.items()}
    assert {each.status for each in ended.values()} == {0}, ended
    assert ended["worker:0"].out.startswith("2 steps, ")


def test_a_process_that_is_killed_is_named(build: Path) -> None:
    with running_launch(build, MANY_STEPS) as run:
        run.wait_for_line("step ")
        processes = node_processes(build)
        assert sorted(processes) == ["ps:0", "worker:0", "worker:1"]
        os.kill(processes["worker:1"], signal.SIGKILL)
        ended = run.wait(END_TIMEOUT)
    assert ended.status == 1
    assert re.match(
        r"worker:1 was killed by SIGKILL( at step \d+ or later)?\n", ended.last_message
    )
    assert not node_processes(build)


FAILS_AT_ONCE = "def train():\n    raise ValueError('no such patient')\n"


@pytest.mark.parametrize(
    ("rows", "row"),
    [
        pytest.param(INDEXED_READER, 17, id="later"),
        pytest.param(FAILS_AT_ONCE, 0, id="at once", marks=pytest.mark.slow),
    ],
)
def test_a_thread_that_fails_is_named_and_ends_all(
    tmp_path: Path, rows: str, row: int
) -> None:
    build = compile_threads(tmp_path, rows=rows)
    done = launch(build)
    assert done.status == 1
    assert re.match(
        rf"worker:[01]\.[01] failed: .*reader python:rows:train failed at row {row}:"
        r" ValueError: no such patient",
        done.last_message,
    )
    assert done.err.count("no such patient") == 1
    assert not node_processes(build)


HANGS = """\
import sys
import threading

import placer


def train():
    with open(placer.data_folder() / "calls", "a") as file:
        file.write(sys.argv[-1] + "\\n")
    for i in range(64):
        if i == 37 and "worker:1" in sys.argv:
            threading.Event().wait()
        yield {"x": [i % 3, i % 5, i % 7, 1.0], "y": float(i % 11)}
"""


def test_a_source_that_hangs_is_called_once_and_its_thread_named(
    tmp_path: Path,
) -> None:
    """The threads of its process wait for the one that reads."""
    build = compile_threads(tmp_path, rows=HANGS)
    done = launch(build, "--deadline=3")
    assert done.status == 1
    assert re.match(
        r"worker:1\.[01] failed: reading rows: no progress for \d+ s \(.* waited 3 s for ",
        done.last_message,
    ), done.last_message
    assert len((tmp_path / "calls").read_text().split()) == 2  # of two processes
    assert not node_processes(build)


def test_ctrl_c_saves_what_every_thread_has_computed(
    free_build: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    with running_launch(free_build, MANY_STEPS, f"--checkpoint={saved}") as run:
        run.wait_for_line("step ")
        run.process.send_signal(signal.SIGINT)
        ended = run.wait(END_TIMEOUT)
    assert ended.status == 130, ended.err
    (_, manifest), *_ = list_checkpoints(saved)
    steps = manifest.progress.workers
    assert sorted(steps) == ["worker:0.0", "worker:0.1", "worker:1.0", "worker:1.1"]


def test_an_asynchronous_run_of_threads_is_replayed(
    free_build: Path, tmp_path: Path
) -> None:
    order = tmp_path / "order"
    saved = [tmp_path / f"{how}.safetensors" for how in ("recorded", "replayed")]
    done = launch(free_build, f"--save-params={saved[0]}", f"--record-order={order}")
    assert done.status == 0, done.err
    assert len([*order.iterdir()]) >= 5  # one for each thread, and the server
    run_in_threads(free_build, Options(save_params=saved[1], replay_order=order))
    assert saved[0].read_bytes() == saved[1].read_bytes()


def test_a_run_goes_on_with_another_number_of_threads(
    build: Path, tmp_path: Path
) -> None:
    """Synchronously, on any placement."""
    one = compile_small(tmp_path, workers=2, size=512)
    saved = tmp_path / "saved"
    run_in_threads(build, Options(steps=4, checkpoint=saved))
    ends = [tmp_path / f"{name}.safetensors" for name in ("threads", "one")]
    for each, end in zip((build, one), ends, strict=True):
        run_in_threads(each, Options(steps=8, resume=saved, save_params=end))
    threads, single = map(load_file, ends)
    for name, values in threads.items():
        assert values == pytest.approx(single[name], abs=1e-6)
