"""A node that dies, freezes or never joins ends the run on all nodes, and is named."""

from __future__ import annotations

import os
import re
import select
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.marks import slow_but
from support.real_runs import (
    END_TIMEOUT,
    MANY_STEPS,
    compile_small,
    first_step_waiter,
    node_processes,
    nodes_by_hand,
    run_command,
    running_launch,
)

NODES = {"worker:0", "worker:1", "ps:0"}
LOST = "lost: no heartbeat for 8 s"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_small(tmp_path_factory.mktemp("small"), workers=2)


@pytest.mark.parametrize("node", slow_but(["ps:0"], ["worker:0", "worker:1", "ps:0"]))
def test_a_killed_node_ends_the_launch_and_is_named(build: Path, node: str) -> None:
    with running_launch(build, MANY_STEPS) as run:
        run.wait_for_line("step ")
        nodes = node_processes(build)
        assert nodes.keys() == NODES
        os.kill(nodes[node], signal.SIGKILL)
        ended = run.wait(END_TIMEOUT)
    assert ended.status == 1
    log = build.parent / "logs" / f"{node.replace(':', '-')}.log"
    first, second = ended.last_message.splitlines()
    assert re.fullmatch(rf"{node} was killed by SIGKILL( at step \d+)?", first)
    assert second == f"  log: {log}"
    assert ended.out == ""
    assert not node_processes(build)


def test_a_frozen_node_ends_the_launch_and_is_named(tmp_path: Path) -> None:
    with ExitStack() as contexts:
        runs = {}
        for node in (
            "worker:1",
            "ps:0",
        ):  # at the same time: detecting a loss takes 8 s
            folder = tmp_path / node.replace(":", "-")
            folder.mkdir()
            build = compile_small(folder, workers=2)
            runs[node] = (
                build,
                contexts.enter_context(
                    running_launch(build, MANY_STEPS, "--lost-after=8")
                ),
            )
        for node, (build, run) in runs.items():
            run.wait_for_line("step ")
            os.kill(node_processes(build)[node], signal.SIGSTOP)
        for node, (build, run) in runs.items():
            ended = run.wait(END_TIMEOUT)
            assert ended.status == 1
            first, second, third = ended.last_message.splitlines()
            assert first.startswith(f"{node} failed: seen from ")
            assert LOST in first
            assert second == "  its process is frozen: a signal has stopped it"
            assert third.startswith("  log: ")
            assert not node_processes(build)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGKILL, "lost: its process has ended"),
        pytest.param(signal.SIGINT, "it was interrupted", marks=pytest.mark.slow),
    ],
)
def test_nodes_started_by_hand_name_the_one_that_ended(
    build: Path, tmp_path: Path, number: signal.Signals, message: str
) -> None:
    history = tmp_path / "history"
    with (
        first_step_waiter(history) as wait_for_first_step,
        nodes_by_hand(build, MANY_STEPS, f"--history={history}") as runs,
    ):
        wait_for_first_step()
        runs["worker:1"].process.send_signal(number)
        for node in ("worker:0", "ps:0"):
            ended = runs[node].wait(END_TIMEOUT)
            assert ended.status == 1
            (line,) = ended.err.splitlines()
            assert line.startswith("worker:1: ")
            assert message in line
    assert not node_processes(build)


def test_a_peer_that_never_joins_is_named(build: Path) -> None:
    ended = run_command(
        "run", build, "--node", "worker:0", "--join-timeout=2", within=2 + END_TIMEOUT
    )
    assert ended.status == 1
    assert ended.last_message.startswith("ps:0 did not join within 2 s (127.0.0.1:")
    assert "worker:1 did not join within 2 s (127.0.0.1:" in ended.last_message


@pytest.mark.parametrize(
    ("number", "status", "last"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 128 + signal.SIGTERM, None),
    ],
)
def test_a_signal_to_the_launcher_ends_all_nodes(
    build: Path, number: signal.Signals, status: int, last: str | None
) -> None:
    with running_launch(build, MANY_STEPS) as run:
        run.wait_for_line("step ")
        assert node_processes(build).keys() == NODES
        run.process.send_signal(number)
        ended = run.wait(END_TIMEOUT)
    assert ended.status == status
    if last is not None:
        assert ended.last_message == last
    assert ended.out == ""
    assert not node_processes(build)


def test_nodes_end_when_their_launcher_was_killed(build: Path) -> None:
    with running_launch(build, MANY_STEPS) as run:
        run.wait_for_line("step ")
        ends = [os.pidfd_open(pid) for pid in node_processes(build).values()]
        assert len(ends) == len(NODES)
        run.process.kill()
        for end in ends:
            assert select.select([end], [], [], END_TIMEOUT)[0], "a node still runs"
            os.close(end)
    assert not node_processes(build)
