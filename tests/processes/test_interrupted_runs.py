"""A run that a signal stops saves what as many steps give."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from support.real_runs import (
    FOR_EVER,
    by_hand,
    first_line,
    launched,
    processes,
    small,
    started,
)
from support.real_runs import placer_command as command

import placer


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("small"), workers=2)


def check_saved(build: Path, said: str, saved: Path) -> None:
    """The run has said after which step it saved what that many steps give."""
    found = re.search(r"stopped after step (\d+); the parameters are in (.*)", said)
    assert found, said
    assert found[2] == str(saved)
    again = saved.with_name("again.safetensors")
    placer.launch(build, steps=int(found[1]), save_params=again, in_process=True)
    assert saved.read_bytes() == again.read_bytes()


@pytest.mark.parametrize(
    ("carrier", "number", "status"),
    [("shared", signal.SIGINT, 130), ("zeromq", signal.SIGTERM, 143)],
)
def test_processes_save_after_the_same_step(build, tmp_path, carrier, number, status):
    saved = tmp_path / "saved.safetensors"
    options = FOR_EVER, f"--save-params={saved}", f"--carrier={carrier}"
    with launched(build, *options) as run:
        run.until("step ")
        run.process.send_signal(number)
        ended = run.end()
    assert (ended.status, ended.out) == (status, "")
    check_saved(build, ended.err, saved)
    assert not processes(build)


def test_threads_save_after_the_same_step(build, tmp_path):
    saved, history = tmp_path / "saved.safetensors", tmp_path / "history"
    options = FOR_EVER, f"--save-params={saved}", f"--history={history}"
    with (
        first_line(history) as trains,
        started(command("launch", build, "--in-process", *options)) as run,
    ):
        trains()
        run.process.send_signal(signal.SIGINT)
        ended = run.end()
    assert (ended.status, ended.out) == (130, "")
    assert ended.last == "interrupted"
    check_saved(build, ended.err, saved)


def test_nodes_started_by_hand_save_when_the_first_is_interrupted(build, tmp_path):
    saved, history = tmp_path / "saved.safetensors", tmp_path / "history"
    options = FOR_EVER, f"--save-params={saved}", f"--history={history}"
    with first_line(history) as trains, by_hand(build, *options) as runs:
        trains()
        runs["worker:0"].process.send_signal(signal.SIGINT)
        ended = {node: run.end() for node, run in runs.items()}
    status = {node: each.status for node, each in ended.items()}
    assert status == {"worker:0": 130, "worker:1": 0, "ps:0": 0}
    check_saved(build, ended["worker:0"].err, saved)
