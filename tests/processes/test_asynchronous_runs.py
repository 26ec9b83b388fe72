"""Asynchronous workers, as processes: failures end the run, and Ctrl-C saves it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from support.marks import slow_but
from support.real_runs import (
    END_TIMEOUT,
    MANY_STEPS,
    compile_small,
    node_processes,
    running_launch,
)

from placer.checkpoint.folder import list_checkpoints
from placer.compiler.driver import compile


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asynchronous")
    compile_small(folder, workers=2)
    spec = folder / "small.yaml"
    update = "place: /node:ps/cpu, update: {async: {max_staleness: 3}}"
    spec.write_text(spec.read_text().replace("place: /node:ps/cpu", update))
    compile(spec, folder / "asynchronous")
    return folder / "asynchronous"


@pytest.mark.parametrize("node", slow_but(["worker:1"], ["worker:1", "ps:0"]))
def test_a_killed_node_ends_the_run_and_is_named(build: Path, node: str) -> None:
    with running_launch(build, MANY_STEPS) as run:
        run.wait_for_line("step ")
        os.kill(node_processes(build)[node], signal.SIGKILL)
        ended = run.wait(END_TIMEOUT)
    assert ended.status == 1
    assert re.match(
        rf"{node} was killed by SIGKILL( at step \d+ or later)?\n", ended.last_message
    )
    assert not node_processes(build)


def test_ctrl_c_saves_all_that_was_computed(build: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with running_launch(build, MANY_STEPS, f"--checkpoint={saved}") as run:
        run.wait_for_line("step ")
        run.process.send_signal(signal.SIGINT)
        ended = run.wait(END_TIMEOUT)
    assert ended.status == 130, ended.err
    (_, manifest), *_ = list_checkpoints(saved)
    # Each worker has pushed the gradients of all of its steps.
    steps = manifest.progress.workers
    assert min(steps.values()) == manifest.progress.step
    assert {p.updates for p in manifest.parameters.values()} == {sum(steps.values())}
