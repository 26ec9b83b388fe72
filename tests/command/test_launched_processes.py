"""The launcher ends every process, whatever happens, and names the root cause."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from placer.errors import RunError
from placer.launcher import supervise
from placer.launcher.cause import last_line, of_report
from placer.launcher.local import launch_nodes, log_path
from placer.launcher.node_events import Blame, Event, Failed, Finished, State, Step
from placer.launcher.output import show_output
from placer.launcher.supervise import Outcome

SCRIPTED = Path(__file__).parents[1] / "support" / "scripted_node.py"
ENOUGH = 60.0
"""Seconds after which a test gives up on what it waits for."""


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody here needs long to end by itself."""
    monkeypatch.setattr(supervise, "ROOT_GRACE", 0.3)
    monkeypatch.setattr(supervise, "TERM_GRACE", 0.5)


def outcome(
    scripts: Mapping[str, str], logs: Path, watch: Callable[[Event], None] | None = None
) -> Outcome:
    """Launch a node for each script."""

    def command(node: str) -> list[str]:
        return [sys.executable, str(SCRIPTED), node, *scripts[node].split()]

    watch = watch or (lambda event: None)
    return launch_nodes(list(scripts), command, logs, os.environ, watch)


def launched(
    scripts: Mapping[str, str], logs: Path, watch: Callable[[Event], None] | None = None
) -> Finished:
    """The result of nodes that all end well."""
    found = outcome(scripts, logs, watch)
    assert not found.warnings
    return found.result


def failure(scripts: Mapping[str, str], logs: Path) -> str:
    with pytest.raises(RunError) as caught:
        launched(scripts, logs)
    return str(caught.value)


def logged(logs: Path, node: str, word: str) -> int:
    """The number after `word` in a node's log."""
    found = re.search(rf"{word} (\d+)", log_path(logs, node).read_text())
    assert found, f"{node} has not said its {word}"
    return int(found[1])


def runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def wait_for_end(pid: int) -> None:
    """Wait until the process, which is nobody's child here, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        assert ended.poll(ENOUGH * 1000), f"process {pid} is left behind"
    finally:
        os.close(descriptor)


def test_a_run_gives_its_result_and_shows_every_event(tmp_path: Path) -> None:
    seen: list[Event] = []
    result = launched(
        {
            "worker:0": "state=running step=1 state=done result",
            "ps:0": "state=running state=done",
        },
        tmp_path / "logs",
        seen.append,
    )
    assert result == Finished(1, {"loss": 0.5}, {}, 10.0, {"worker:0": 8})
    states = [(e.node, e.state) for e in seen if isinstance(e, State)]
    assert sorted(states) == [
        ("ps:0", "done"),
        ("ps:0", "running"),
        ("worker:0", "done"),
        ("worker:0", "running"),
    ]
    (step,) = (e for e in seen if isinstance(e, Step))
    assert step.metrics["loss"] != step.metrics["loss"]  # a loss that is no number


def test_each_node_has_a_log_of_its_own(tmp_path: Path) -> None:
    launched(
        {
            "worker:0": "say=hello state=done result",
            "ps:0": "say=goodbye state=done",
        },
        tmp_path,
    )
    assert (tmp_path / "worker-0.log").read_text() == "hello\n"
    assert (tmp_path / "ps-0.log").read_text() == "goodbye\n"


def test_the_last_words_of_a_process_are_heard_however_many(tmp_path: Path) -> None:
    seen: list[Event] = []
    launched({"worker:0": "flood state=done result"}, tmp_path, seen.append)
    steps = [event.step for event in seen if isinstance(event, Step)]
    assert steps == list(range(20_000))


def test_a_node_that_reports_its_failure_is_the_root_cause(tmp_path: Path) -> None:
    told = failure(
        {
            "worker:0": "hear=worker:1 exit=1",
            "worker:1": "fail=ValueError exit=1",
            "ps:0": "hear=worker:1 exit=1",
        },
        tmp_path,
    )
    log = log_path(tmp_path, "worker:1")
    assert told == f"worker:1 failed: step 1: ValueError\n  log: {log}"


@pytest.mark.parametrize("said", ["worker:1 is full", "worker:1: is full", "is full"])
def test_a_node_is_named_once(said: str) -> None:
    found = of_report(Failed(Blame("worker:1", "", said), root=True))
    assert found.text == "worker:1 failed: is full"


def test_a_killed_node_is_named_with_its_signal(tmp_path: Path) -> None:
    told = failure({"worker:0": "wait", "ps:0": "kill=SIGKILL"}, tmp_path)
    assert told.startswith("ps:0 was killed by SIGKILL\n")


def test_a_node_that_says_nothing_is_told_by_its_log(tmp_path: Path) -> None:
    told = failure({"worker:0": "wait", "ps:0": "say=boom exit=3"}, tmp_path)
    assert told.startswith("ps:0 ended with exit status 3: boom\n")


def test_a_node_that_leaves_early_is_a_failure(tmp_path: Path) -> None:
    told = failure({"worker:0": "wait", "ps:0": "state=running exit=0"}, tmp_path)
    assert told.startswith("ps:0 ended before the run did\n")


def test_nodes_that_end_without_a_result_are_a_failure(tmp_path: Path) -> None:
    told = failure({"worker:0": "state=done", "ps:0": "state=done"}, tmp_path)
    assert told == "all nodes have ended, and none reported a result"


RESULT = Finished(1, {"loss": 0.5}, {}, 10.0, {"worker:0": 8})
AFTER = ", after the run had its result, which is complete"


def test_a_node_that_outlasts_the_result_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "RESULT_GRACE", 0.2)
    scripts = {"worker:0": "state=done result", "ps:0": "pid state=done wait"}
    found = outcome(scripts, tmp_path)
    log = log_path(tmp_path, "ps:0")
    said = f"ps:0 did not end within 0.2 s of the run's end{AFTER}\n  log: {log}"
    assert found == Outcome(RESULT, (said,))
    assert not runs(logged(tmp_path, "ps:0", "pid"))


@pytest.mark.parametrize("node", ["worker:0", "ps:0"])
def test_a_node_that_crashes_after_the_result_is_a_warning(
    node: str, tmp_path: Path
) -> None:
    ps, worker = log_path(tmp_path, "ps:0"), log_path(tmp_path, "worker:0")
    scripts = {
        "worker:0": f"pid state=writing ended={ps} result state=done",
        "ps:0": "pid state=done",
    }
    if node == "ps:0":  # it outlives the run
        scripts = {
            "worker:0": "pid state=writing result state=done",
            "ps:0": f"pid state=done ended={worker}",
        }
    scripts[node] += " exit=139"
    found = outcome(scripts, tmp_path)
    log = log_path(tmp_path, node)
    said = f"{node} ended with exit status 139: pid {logged(tmp_path, node, 'pid')}"
    assert found == Outcome(RESULT, (f"{said}{AFTER}\n  log: {log}",))


@pytest.mark.parametrize("how", ["exit=139", "kill=SIGKILL", "fail=boom"])
def test_a_node_that_has_done_its_part_may_fail_while_another_writes(
    how: str, tmp_path: Path
) -> None:
    log = log_path(tmp_path, "ps:0")
    scripts = {
        "worker:0": f"state=saving state=writing ended={log} result state=done",
        "ps:0": f"pid state=saving state=done {how}",
    }
    found = outcome(scripts, tmp_path)
    assert found.result == RESULT
    (said,) = found.warnings
    assert said.startswith("ps:0 ")
    assert AFTER in said


def test_a_node_that_dies_before_another_says_that_it_writes_costs_no_result(
    tmp_path: Path,
) -> None:
    log = log_path(tmp_path, "ps:0")
    scripts = {
        "worker:0": f"state=saving ended={log} state=writing slow=1 result state=done",
        "ps:0": "pid state=saving kill=SIGKILL",
    }
    found = outcome(scripts, tmp_path)
    assert found.result == RESULT
    (said,) = found.warnings
    assert said.startswith("ps:0 was killed by SIGKILL")


@pytest.mark.parametrize("how", ["exit=139", "kill=SIGKILL", "fail=boom", "exit=0"])
def test_a_node_that_fails_before_its_part_of_saving_is_done_ends_the_run(
    how: str, tmp_path: Path
) -> None:
    scripts = {"worker:0": "state=saving wait", "ps:0": f"state=saving {how}"}
    assert failure(scripts, tmp_path).startswith("ps:0 ")


def test_a_file_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    scripts = {
        "worker:0": "state=saving state=writing fail=full exit=1",
        "ps:0": "state=saving state=done",
    }
    told = failure(scripts, tmp_path)
    assert told.startswith("worker:0 failed: step 1: full\n")


def test_a_node_that_freezes_after_the_result_is_a_warning(tmp_path: Path) -> None:
    ps = log_path(tmp_path, "ps:0")
    scripts = {
        "worker:0": f"state=writing frozen={ps} result state=done",
        "ps:0": "pid state=saving kill=SIGSTOP",
    }
    found = outcome(scripts, tmp_path)
    frozen = "its process is frozen: it was stopped by a signal"
    said = f"ps:0 did not end{AFTER}\n  {frozen}\n  log: {ps}"
    assert found == Outcome(RESULT, (said,))
    assert not runs(logged(tmp_path, "ps:0", "pid"))


def test_a_node_that_freezes_while_it_writes_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "FROZEN_GRACE", 0.2)
    scripts = {"worker:0": "pid state=writing kill=SIGSTOP", "ps:0": "state=done"}
    assert failure(scripts, tmp_path) == (
        "worker:0 did not end\n"
        "  its process is frozen: it was stopped by a signal\n"
        f"  log: {log_path(tmp_path, 'worker:0')}"
    )
    assert not runs(logged(tmp_path, "worker:0", "pid"))


def test_a_frozen_node_that_others_lost_is_named_and_ended(tmp_path: Path) -> None:
    log = log_path(tmp_path, "ps:0")
    told = failure(
        {
            "worker:0": f"frozen={log} hear=ps:0 exit=1",
            "ps:0": "pid kill=SIGSTOP",
        },
        tmp_path,
    )
    assert told == (
        "ps:0 failed: step 1: lost: no heartbeat\n"
        "  its process is frozen: it was stopped by a signal\n"
        f"  log: {log}"
    )
    assert not runs(logged(tmp_path, "ps:0", "pid"))


def test_a_deaf_node_is_killed(tmp_path: Path) -> None:
    scripts = {"worker:0": "deaf pid wait", "ps:0": "fail=boom exit=1"}
    assert failure(scripts, tmp_path).startswith("ps:0 failed: step 1: boom\n")
    assert not runs(logged(tmp_path, "worker:0", "pid"))


def test_what_a_node_started_ends_with_it(tmp_path: Path) -> None:
    launched({"worker:0": "child state=done result"}, tmp_path)
    child = logged(tmp_path, "worker:0", "child")
    wait_for_end(child)


def test_a_node_may_close_its_pipe_before_it_ends(tmp_path: Path) -> None:
    result = launched({"worker:0": "state=done result quiet exit=0"}, tmp_path)
    assert result.steps == 1


def test_a_line_that_is_no_event_ends_the_run(tmp_path: Path) -> None:
    told = failure({"worker:0": "garbage wait", "ps:0": "pid wait"}, tmp_path)
    assert told == "worker:0 reported what is no event: 'not an event'"


def test_a_node_that_cannot_be_started_ends_those_that_were(tmp_path: Path) -> None:
    def command(node: str) -> list[str]:
        words = [str(SCRIPTED), node, "child", "wait"]
        return [sys.executable if node == "worker:0" else "/no/such/python", *words]

    nodes = ["worker:0", "ps:0"]
    with pytest.raises(RunError, match="ps:0 cannot be started"):
        launch_nodes(nodes, command, tmp_path, os.environ, lambda event: None)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    assert not any(str(SCRIPTED) in cmdline(pid) for pid in children.split())


def cmdline(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_an_error_of_who_watches_ends_all(tmp_path: Path) -> None:
    def watch(event: Event) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        launched({"worker:0": "pid state=running wait"}, tmp_path, watch)
    assert not runs(logged(tmp_path, "worker:0", "pid"))


LAUNCHER = """
import os, signal, sys
from pathlib import Path
from placer.launcher import supervise
from placer.launcher.local import launch_nodes
supervise.TERM_GRACE = 0.5
scripted, logs = sys.argv[1:]
# As a shell starts it, whatever these tests were started by: nohup ignores SIGHUP.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
def command(node):
    return [sys.executable, scripted, node, "deaf", "pid", "state=running", "wait"]
def watch(event):
    print(event.node, flush=True)
nodes = ["worker:0", "ps:0"]
launch_nodes(nodes, command, Path(logs), os.environ, watch)
"""


@pytest.mark.parametrize(
    ("number", "again", "status"),
    [
        (signal.SIGINT, False, -signal.SIGINT),
        (signal.SIGINT, True, -signal.SIGINT),
        (signal.SIGTERM, False, 128 + signal.SIGTERM),
        (signal.SIGHUP, False, 128 + signal.SIGHUP),
        (signal.SIGKILL, False, -signal.SIGKILL),
    ],
)
def test_a_signal_to_the_launcher_ends_all(
    number: signal.Signals, again: bool, status: int, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(SCRIPTED), str(logs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with launcher:
        assert launcher.stdout is not None
        up = {launcher.stdout.readline().strip() for _ in range(2)}
        assert up == {"worker:0", "ps:0"}
        pids = [logged(logs, node, "pid") for node in sorted(up)]
        launcher.send_signal(number)
        if again:
            launcher.send_signal(number)
        assert launcher.wait(ENOUGH) == status
    for pid in pids:
        wait_for_end(pid)


def test_a_log_that_is_gone_hides_no_failure(tmp_path: Path) -> None:
    assert last_line(tmp_path / "gone.log") == ""


def test_a_process_that_cannot_be_watched_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def refused(pid: int) -> int:
        started.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refused)
    before = set(os.listdir("/proc/self/fd"))
    assert "a:0 cannot be started" in failure({"a:0": "wait"}, tmp_path)
    assert len(started) == 1
    assert not runs(started[0])
    assert set(os.listdir("/proc/self/fd")) == before


def test_what_nodes_print_is_shown_with_their_names_and_steers_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = {"worker:0": "print=hello result", "worker:1": "print=there state=done"}
    launched(scripts, tmp_path, show_output)
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(err.splitlines()) == [
        "worker:0| hello\N{REPLACEMENT CHARACTER}[2J",
        "worker:1| there\N{REPLACEMENT CHARACTER}[2J",
    ]
