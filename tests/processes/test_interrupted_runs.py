"""A run that a signal stops saves the parameters after its last step."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest
from support.real_runs import (
    MANY_STEPS,
    TIMEOUT,
    compile_small,
    first_step_waiter,
    node_processes,
    nodes_by_hand,
    running_command,
)
from support.real_runs import placer_command as command

import placer
from placer.channel.ports import free_endpoints
from placer.report.run_files import read_run


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_small(tmp_path_factory.mktemp("small"), workers=2)


def check_saved(build: Path, message: str, saved: Path) -> None:
    """Check that the saved parameters are those of a run with the reported steps."""
    match = re.search(r"stopped after step (\d+); the parameters are in (.*)", message)
    assert match, message
    assert match[2] == str(saved)
    again = saved.with_name("again.safetensors")
    placer.launch(build, steps=int(match[1]), save_params=again, in_process=True)
    assert saved.read_bytes() == again.read_bytes()


@pytest.mark.parametrize(
    ("transport", "target", "number", "status"),
    [
        ("shared", "launcher", signal.SIGINT, 130),
        ("tcp", "worker:1", signal.SIGTERM, 143),
    ],
)
def test_processes_save_after_the_same_step(
    build, tmp_path, transport, target, number, status
):
    saved = tmp_path / "saved.safetensors"
    options = MANY_STEPS, f"--save-params={saved}", f"--transport={transport}"
    folder = tmp_path / "run"
    words = ["train", build.parent / "small.yaml", "--json", "--out", folder, *options]
    with running_command(command(*words)) as run:
        run.wait_for_line("step ")
        processes = node_processes(folder / "build")
        os.kill({**processes, "launcher": run.process.pid}[target], number)
        ended = run.wait()
    assert (ended.status, ended.out) == (status, "")
    check_saved(build, ended.err, saved)
    assert not node_processes(folder / "build")
    *_, last_step, outcome, _ = filter(None, ended.err.splitlines())
    assert last_step.startswith("step ")
    assert outcome.startswith("stopped after step")
    end = read_run(folder).end
    assert (end.ended, end.error) == ("interrupted", outcome)
    assert f"stopped after step {end.steps};" in outcome


def test_threads_save_after_the_same_step(build, tmp_path):
    saved, history = tmp_path / "saved.safetensors", tmp_path / "history"
    options = MANY_STEPS, f"--save-params={saved}", f"--history={history}"
    with (
        first_step_waiter(history) as wait_for_first_step,
        running_command(command("launch", build, "--in-process", *options)) as run,
    ):
        wait_for_first_step()
        run.process.send_signal(signal.SIGINT)
        ended = run.wait()
    assert (ended.status, ended.out) == (130, "")
    assert ended.last_message == "interrupted"
    check_saved(build, ended.err, saved)


def test_nodes_started_by_hand_save_when_the_first_is_interrupted(build, tmp_path):
    saved, history = tmp_path / "saved.safetensors", tmp_path / "history"
    options = MANY_STEPS, f"--save-params={saved}", f"--history={history}"
    with (
        first_step_waiter(history) as wait_for_first_step,
        nodes_by_hand(build, *options) as runs,
    ):
        wait_for_first_step()
        runs["worker:0"].process.send_signal(signal.SIGINT)
        ended = {node: run.wait() for node, run in runs.items()}
    status = {node: each.status for node, each in ended.items()}
    assert status == {"worker:0": 130, "worker:1": 0, "ps:0": 0}
    check_saved(build, ended["worker:0"].err, saved)


STUCK_READER = """\
import sys
import threading
import time


def step_waits():
    # Rows are read ahead: whether the program has come to the fifth step, which needs
    # this row.
    for frame in sys._current_frames().values():
        while frame is not None:
            is_taking = frame.f_code.co_name == "take"
            if is_taking and frame.f_locals.get("position") == (1, 4):
                return True
            frame = frame.f_back
    return False


class Rows:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        if i == 17:
            while not step_waits():
                time.sleep(0.01)
            open({asked!r}, "w").close()
            threading.Event().wait()
        return {{"x": [0.0, 0.0, 0.0, 1.0], "y": 0.0}}


def train():
    return Rows()
"""


def test_a_node_started_by_hand_ends_if_the_nodes_do_not_stop_in_time(tmp_path):
    """The node that gets the signal waits for ever for a row of the fifth step."""
    asked, history = tmp_path / "asked", tmp_path / "history"
    os.mkfifo(asked)
    stuck = compile_small(tmp_path, rows=STUCK_READER.format(asked=str(asked)))
    options = "--grace=0.2", f"--save-params={tmp_path / 's'}", f"--history={history}"
    with (
        first_step_waiter(history) as wait_for_first_step,
        nodes_by_hand(stuck, *options) as runs,
    ):
        wait_for_first_step()
        asked.read_bytes()  # until the reader opens it
        runs["worker:0"].process.send_signal(signal.SIGTERM)
        ended = {node: run.wait() for node, run in runs.items()}
    late = "the nodes did not stop within 0.2 s"
    assert ended["worker:0"].status == 128 + signal.SIGTERM
    assert ended["worker:0"].err.splitlines() == [
        "warning: interrupted: all nodes stop after the same step, within 0.2 s, and"
        " save, within 600 s; another signal ends them immediately",
        f"nothing was saved: {late}",
        "ended by SIGTERM",
    ]
    assert ended["ps:0"].status == 1
    assert ended["ps:0"].last_message.startswith("worker:0: ")
    assert ended["ps:0"].last_message.endswith(f"it was interrupted: {late}")


@pytest.mark.slow  # it waits for nodes that have not joined, to say why it ends
def test_a_node_that_waits_for_the_others_ends_at_once(build, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as first:
        first.settimeout(TIMEOUT)
        endpoints = free_endpoints(["worker:1", "ps:0"])
        endpoints["worker:0"] = f"127.0.0.1:{first.getsockname()[1]}"
        listed = ",".join(f"{node}={address}" for node, address in endpoints.items())
        options = "--transport=tcp", f"--save-params={tmp_path / 'saved'}"
        words = ["run", build, "--node=worker:1", "--endpoints", listed, *options]
        with running_command(command(*words)) as run:
            first.accept()[0].close()
            run.process.send_signal(signal.SIGTERM)
            ended = run.wait()
    assert ended.status == 128 + signal.SIGTERM
    assert ended.err.splitlines() == [
        "nothing was saved: the first step had not finished",
        "ended by SIGTERM",
    ]
