"""A node that dies, freezes or never comes ends the run everywhere, and is named."""

from __future__ import annotations

import os
import select
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.marks import slow_but
from support.real_runs import (
    FOR_EVER,
    SOON,
    by_hand,
    command,
    first_line,
    launched,
    processes,
    small,
)

NODES = {"worker:0", "worker:1", "ps:0"}
LOST = "lost: no heartbeat for 8 s"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("small"), workers=2)


@pytest.mark.parametrize(
    "node", slow_but(["worker:1", "ps:0"], ["worker:0", "worker:1", "ps:0"])
)
def test_a_killed_node_ends_the_launch_and_is_named(build: Path, node: str) -> None:
    with launched(build, FOR_EVER) as run:
        run.until("step ")
        nodes = processes(build)
        assert nodes.keys() == NODES
        os.kill(nodes[node], signal.SIGKILL)
        ended = run.end(SOON)
    assert ended.status == 1
    log = build.parent / "logs" / f"{node.replace(':', '-')}.log"
    assert ended.last == f"{node} was killed by SIGKILL\n  log: {log}"
    assert ended.out == ""
    assert not processes(build)


def test_a_frozen_node_ends_the_launch_and_is_named(tmp_path: Path) -> None:
    with ExitStack() as opened:
        runs = {}
        for node in ("worker:1", "ps:0"):  # side by side: a loss takes its time
            folder = tmp_path / node.replace(":", "-")
            folder.mkdir()
            build = small(folder, workers=2)
            runs[node] = build, opened.enter_context(launched(build, FOR_EVER))
        for node, (build, run) in runs.items():
            run.until("step ")
            os.kill(processes(build)[node], signal.SIGSTOP)
        for node, (build, run) in runs.items():
            ended = run.end(SOON)
            assert ended.status == 1
            first, second, third = ended.last.splitlines()
            assert first.startswith(f"{node} failed: seen from ")
            assert first.endswith(LOST)
            assert second == "  its process is frozen: it was stopped by a signal"
            assert third.startswith("  log: ")
            assert not processes(build)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "lost: its process has ended"),
        (signal.SIGINT, "it was interrupted"),
    ],
)
def test_nodes_started_by_hand_name_the_one_that_ended(
    build: Path, tmp_path: Path, number: signal.Signals, said: str
) -> None:
    history = tmp_path / "history"
    with (
        first_line(history) as trains,
        by_hand(build, FOR_EVER, f"--history={history}") as runs,
    ):
        trains()
        runs["worker:1"].process.send_signal(number)
        for node in ("worker:0", "ps:0"):
            ended = runs[node].end(SOON)
            assert ended.status == 1
            (line,) = ended.err.splitlines()
            assert line.startswith("worker:1: ")
            assert line.endswith(said)
    assert not processes(build)


def test_a_peer_that_never_comes_is_named(build: Path) -> None:
    ended = command(
        "run", build, "--node", "worker:0", "--join-timeout=2", within=2 + SOON
    )
    assert ended.status == 1
    assert ended.last.startswith("ps:0 did not come within 2 s (127.0.0.1:")
    assert "worker:1 did not come within 2 s (127.0.0.1:" in ended.last


@pytest.mark.parametrize(
    ("number", "status", "last"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 128 + signal.SIGTERM, None),
    ],
)
def test_a_signal_to_the_launch_ends_all(
    build: Path, number: signal.Signals, status: int, last: str | None
) -> None:
    with launched(build, FOR_EVER) as run:
        run.until("step ")
        assert processes(build).keys() == NODES
        run.process.send_signal(number)
        ended = run.end(SOON)
    assert ended.status == status
    if last is not None:
        assert ended.last == last
    assert ended.out == ""
    assert not processes(build)


def test_nodes_end_when_their_launch_was_killed(build: Path) -> None:
    with launched(build, FOR_EVER) as run:
        run.until("step ")
        ends = [os.pidfd_open(pid) for pid in processes(build).values()]
        assert len(ends) == len(NODES)
        run.process.kill()
        for end in ends:
            assert select.select([end], [], [], SOON)[0], "a node goes on"
            os.close(end)
    assert not processes(build)
