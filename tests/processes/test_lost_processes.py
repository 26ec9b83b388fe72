"""A node that dies, freezes or never joins ends the run on all nodes, and is named."""

from __future__ import annotations

import os
import re
import select
import signal
from pathlib import Path

import pytest
from support.kept_runs import find_runs
from support.marks import slow_but
from support.real_runs import (
    END_TIMEOUT,
    MANY_STEPS,
    ROOT,
    compile_small,
    first_step_waiter,
    launch,
    node_processes,
    nodes_by_hand,
    run_command,
    running_launch,
    shown_tables,
)

from placer.launcher.fork_server import NAME

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
    first, second, third = ended.last_message.splitlines()
    assert re.fullmatch(rf"{node} was killed by SIGKILL( at step \d+ or later)?", first)
    assert second == f"  log: {log}"
    assert third.startswith("  hint: with 'restarts' (--restarts N)")
    assert ended.out == ""
    assert not node_processes(build)
    end = find_runs(build.parent / "runs")[-1].end
    assert (end.ended, end.error) == ("failed", ended.last_message)


@pytest.mark.parametrize("node", slow_but(["ps:0"], ["worker:1", "ps:0"]))
def test_a_frozen_node_ends_the_launch_and_is_named(build: Path, node: str) -> None:
    with running_launch(build, MANY_STEPS, "--lost-after=8") as run:
        run.wait_for_line("step ")
        os.kill(node_processes(build)[node], signal.SIGSTOP)
        ended = run.wait(END_TIMEOUT)
    assert ended.status == 1
    first, second, third, _ = ended.last_message.splitlines()
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
            (line,) = ended.err.removeprefix(shown_tables(build, node)).splitlines()
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
    slow_but(
        [(signal.SIGINT, 130, "interrupted")],
        [
            (signal.SIGINT, 130, "interrupted"),
            (signal.SIGTERM, 128 + signal.SIGTERM, None),
        ],
    ),
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
    """Also one that is stopped."""
    with running_launch(build, MANY_STEPS) as run:
        run.wait_for_line("step ")
        nodes = node_processes(build)
        ends = [os.pidfd_open(pid) for pid in nodes.values()]
        assert len(ends) == len(NODES)
        os.kill(nodes["worker:1"], signal.SIGSTOP)
        run.process.kill()
        for end in ends:
            assert select.select([end], [], [], END_TIMEOUT)[0], "a node still runs"
            os.close(end)
    assert not node_processes(build)


def test_nodes_end_when_their_fork_server_was_killed(build: Path) -> None:
    with running_launch(build, MANY_STEPS) as run:
        run.wait_for_line("step ")
        assert node_processes(build).keys() == NODES
        tasks = Path(f"/proc/{run.process.pid}/task")
        (server,) = map(
            int, (tasks / f"{tasks.parent.name}/children").read_text().split()
        )
        assert Path(f"/proc/{server}/cmdline").read_text().rstrip("\0") == NAME
        os.kill(server, signal.SIGKILL)
        ended = run.wait(END_TIMEOUT)
    assert ended.status == 1
    first, _ = ended.last_message.splitlines()
    assert first == "the fork server was killed by SIGKILL, which ends all nodes"
    assert not node_processes(build)


@pytest.mark.slow
def test_if_a_process_cannot_be_forked_the_nodes_make_their_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{ROOT}")
    ended = launch(compile_small(tmp_path, workers=2), "--steps=2")
    assert ended.status == 0
    assert (
        "warning: each node makes its imports itself: the fork server has 2 threads"
        in (ended.err)
    )


STUCK = """\
import sys
import threading


def wait_on_worker_1():
    if "worker:1" in sys.argv:
        threading.Event().wait()
"""
STUCK_AT_A_STEP = (
    STUCK
    + """

class Rows:
    reads = 0  # of row 37; before the first step it is read to be compared

    def __len__(self):
        return 64

    def __getitem__(self, i):
        self.reads += i == 37
        if i == 37 and self.reads == 3:
            wait_on_worker_1()
        return {"x": [i % 3, i % 5, i % 7, 1.0], "y": float(i % 11)}


def train():
    return Rows()
"""
)
STUCK_BEFORE_THE_FIRST_STEP = (
    STUCK
    + """

def train():
    for i in range(64):
        if i == 37:
            wait_on_worker_1()
        yield {"x": [i % 3, i % 5, i % 7, 1.0], "y": float(i % 11)}
"""
)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (STUCK_AT_A_STEP, r"step \d+, running"),
        (STUCK_BEFORE_THE_FIRST_STEP, "reading rows"),
    ],
    ids=["at a step", "before the first step"],
)
def test_a_reader_that_hangs_is_named_and_not_who_waits_for_it(
    tmp_path: Path, rows: str, what: str
) -> None:
    build = compile_small(tmp_path, workers=2, rows=rows)
    with running_launch(build, MANY_STEPS, "--deadline=5") as run:
        ended = run.wait(END_TIMEOUT + 20)
    assert ended.status == 1
    assert re.match(
        rf"worker:1 failed: {what}.*: no progress for \d+ s \(.* waited 5 s for ",
        ended.last_message,
    ), ended.last_message
    assert not node_processes(build)


STUCK_WHILE_SAVING = """\
import sys
import threading

if "ps:0" in sys.orig_argv:
    from placer.checkpoint import writing

    writing.write_tensors = lambda *_: threading.Event().wait()
"""


def test_a_node_that_hangs_while_it_saves_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk does not answer."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(STUCK_WHILE_SAVING)
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{ROOT}")
    monkeypatch.setenv(
        "PLACER_FORK", "0"
    )  # the file is to run in the process of a node
    build = compile_small(tmp_path, workers=2)
    saves = (f"--checkpoint={tmp_path / 'saved'}", "--checkpoint-every=1 steps")
    with running_launch(build, MANY_STEPS, "--deadline=3", *saves) as run:
        ended = run.wait(END_TIMEOUT + 20)
    assert ended.status == 1
    assert re.match(
        r"ps:0 failed: step \d+, writing a checkpoint: no progress for \d+ s ",
        ended.last_message,
    ), ended.last_message


@pytest.mark.slow
def test_a_node_that_is_paused_for_less_than_the_limit_is_named_and_goes_on(
    tmp_path: Path,
) -> None:
    build = compile_small(tmp_path, workers=2)
    with running_launch(build, "--steps=400") as run:
        run.wait_for_line("step ")
        paused = node_processes(build)["worker:1"]
        os.kill(paused, signal.SIGSTOP)
        run.wait_for_line("warning: worker:1 has been silent for ")
        os.kill(paused, signal.SIGCONT)
        run.wait_for_line("warning: worker:1 is back after a silence of ")
        ended = run.wait(END_TIMEOUT + 20)
    assert ended.status == 0, ended.err
