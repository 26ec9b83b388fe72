"""The launcher always ends every process, and names the root cause of a failure."""

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
from msgspec.structs import replace

from placer.channel.cause import Cause
from placer.channel.frames import Abort
from placer.errors import RunError
from placer.launcher import frozen, supervise
from placer.launcher.cause import failure_from_report, last_line
from placer.launcher.logs import log_path
from placer.launcher.node_process import NodeProcess, start_node
from placer.launcher.processes import ForksEnded, StartNode, launch_nodes
from placer.runtime.control.events import (
    Event,
    Left,
    NodeFailure,
    NodeWarning,
    State,
    Step,
    show_output,
)
from placer.runtime.control.result import Result
from placer.runtime.signals.interruption import Interruption

SCRIPTED = Path(__file__).parents[1] / "support" / "scripted_node.py"
TIMEOUT = 60.0
"""The longest that a test waits, in seconds."""


@pytest.fixture(autouse=True)
def short_graces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the grace periods: no process here needs long to end."""
    monkeypatch.setattr(supervise, "PEER_EXIT_GRACE", 0.3)


def outcome(
    scripts: Mapping[str, str], logs: Path, watch: Callable[[Event], None] | None = None
) -> Result:
    """Launch a node for each script, and return the result."""

    def command(node: str) -> list[str]:
        return [sys.executable, str(SCRIPTED), node, *scripts[node].split()]

    watch = watch or (lambda event: None)
    start = starter(command)
    return launch_nodes(list(scripts), start, logs, watch, Interruption())


def starter(command: Callable[[str], list[str]]) -> StartNode:
    """Return what starts the command of a node."""

    def start(node: str, log: Path, takes_orders: bool) -> NodeProcess:
        return start_node(
            node, command(node), log, os.environ, takes_orders=takes_orders
        )

    return start


def launch_and_wait(
    scripts: Mapping[str, str], logs: Path, watch: Callable[[Event], None] | None = None
) -> Result:
    """Launch a node for each script, and return the result; there are no warnings."""
    run = outcome(scripts, logs, watch)
    assert not run.warnings
    return run


def failure(scripts: Mapping[str, str], logs: Path) -> str:
    with pytest.raises(RunError) as caught:
        launch_and_wait(scripts, logs)
    return str(caught.value)


def logged(logs: Path, node: str, word: str) -> int:
    """Return the number after `word` in the log of a node."""
    match = re.search(rf"{word} (\d+)", log_path(logs, node).read_text())
    assert match, f"{node} has not printed its {word}"
    return int(match[1])


def runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def wait_for_end(pid: int) -> None:
    """Wait until a process, which is not a child of this one, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        assert ended.poll(TIMEOUT * 1000), f"process {pid} still runs"
    finally:
        os.close(descriptor)


def test_a_run_returns_its_result_and_passes_on_every_event(tmp_path: Path) -> None:
    seen: list[Event] = []
    result = launch_and_wait(
        {
            "worker:0": "state=running step=1 state=done result",
            "ps:0": "state=running state=done",
        },
        tmp_path / "logs",
        seen.append,
    )
    assert result == Result(1, {"loss": 0.5}, {}, 10.0, {"worker:0": 8})
    states = [(e.node, e.state) for e in seen if isinstance(e, State)]
    assert sorted(states) == [
        ("ps:0", "done"),
        ("ps:0", "running"),
        ("worker:0", "done"),
        ("worker:0", "running"),
    ]
    (step,) = (e for e in seen if isinstance(e, Step))
    assert step.metrics["loss"] != step.metrics["loss"]  # NaN


def test_each_node_has_a_log_of_its_own(tmp_path: Path) -> None:
    launch_and_wait(
        {
            "worker:0": "say=hello state=done result",
            "ps:0": "say=goodbye state=done",
        },
        tmp_path,
    )
    assert (tmp_path / "worker-0.log").read_text() == "hello\n"
    assert (tmp_path / "ps-0.log").read_text() == "goodbye\n"


def test_all_events_of_a_process_are_read_after_it_has_ended(tmp_path: Path) -> None:
    seen: list[Event] = []
    launch_and_wait({"worker:0": "flood state=done result"}, tmp_path, seen.append)
    steps = [event.step for event in seen if isinstance(event, Step)]
    assert steps == list(range(20_000))


def test_a_node_that_reports_its_failure_is_the_root_cause(tmp_path: Path) -> None:
    message = failure(
        {
            "worker:0": "hear=worker:1 exit=1",
            "worker:1": "fail=ValueError exit=1",
            "ps:0": "hear=worker:1 exit=1",
        },
        tmp_path,
    )
    log = log_path(tmp_path, "worker:1")
    assert message == f"worker:1 failed: step 1: ValueError\n  log: {log}"


@pytest.mark.parametrize(
    "message", ["worker:1 is full", "worker:1: is full", "is full"]
)
def test_a_node_is_named_once(message: str) -> None:
    failure = failure_from_report(
        NodeFailure(Cause("worker:1", "", message), root=True)
    )
    assert failure.text == "worker:1 failed: is full"
    ended = Left("worker:1", 1, Cause("worker:1", "", message), root=True)
    assert failure_from_report(ended).text == "worker:1 is full"


def test_a_killed_node_is_named_with_its_signal(tmp_path: Path) -> None:
    """Its last state is that of step 1, and the next one had not come."""
    scripts = {"worker:0": "wait", "ps:0": "state=running kill=SIGKILL"}
    message = failure(scripts, tmp_path)
    assert message.startswith("ps:0 was killed by SIGKILL at step 1 or later\n")


def test_a_node_that_ends_without_a_report_is_named_with_the_end_of_its_log(
    tmp_path: Path,
) -> None:
    message = failure({"worker:0": "wait", "ps:0": "say=boom exit=3"}, tmp_path)
    assert message.startswith("ps:0 ended with exit status 3: boom\n")


def test_a_node_that_ends_early_is_a_failure(tmp_path: Path) -> None:
    message = failure({"worker:0": "wait", "ps:0": "state=running exit=0"}, tmp_path)
    assert message.startswith("ps:0 ended before the end of the run\n")


def test_nodes_that_end_without_a_result_are_a_failure(tmp_path: Path) -> None:
    message = failure({"worker:0": "state=done", "ps:0": "state=done"}, tmp_path)
    assert message == "all nodes have ended, but none reported a result"


def test_a_signal_is_the_cause_of_a_failure_only_if_the_node_says_so() -> None:
    """A source of the user's may be interrupted, too."""
    what = "it was interrupted by the database"
    for is_interruption in (False, True):
        cause = Cause("ps:0", "step 1", what, is_interruption)
        failure = failure_from_report(NodeFailure(cause, root=True))
        assert failure.is_interruption is is_interruption
        assert Abort.of(cause) == Abort("ps:0", "step 1", what, is_interruption)


RESULT = Result(1, {"loss": 0.5}, {}, 10.0, {"worker:0": 8})
AFTER = ", after the run had a complete result"


def test_a_node_that_runs_on_after_the_result_causes_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "EXIT_GRACE", 0.2)
    scripts = {"worker:0": "state=done result", "ps:0": "pid state=done wait"}
    run = outcome(scripts, tmp_path)
    log = log_path(tmp_path, "ps:0")
    warning = f"ps:0 did not end within 0.2 s of the run's end{AFTER}\n  log: {log}"
    assert run == replace(RESULT, warnings=(warning,), failed_late=True)
    assert not runs(logged(tmp_path, "ps:0", "pid"))


@pytest.mark.parametrize("node", ["worker:0", "ps:0"])
def test_a_node_that_crashes_after_the_result_causes_a_warning(
    node: str, tmp_path: Path
) -> None:
    ps, worker = log_path(tmp_path, "ps:0"), log_path(tmp_path, "worker:0")
    scripts = {
        "worker:0": f"pid state=writing ended={ps} result state=done",
        "ps:0": "pid state=done",
    }
    if node == "ps:0":  # it ends after the run
        scripts = {
            "worker:0": "pid state=writing result state=done",
            "ps:0": f"pid state=done ended={worker}",
        }
    scripts[node] += " exit=139"
    run = outcome(scripts, tmp_path)
    log = log_path(tmp_path, node)
    warning = f"{node} ended with exit status 139: pid {logged(tmp_path, node, 'pid')}"
    warning += f"{AFTER}\n  log: {log}"
    assert run == replace(RESULT, warnings=(warning,), failed_late=True)


@pytest.mark.parametrize("how", ["exit=139", "kill=SIGKILL", "fail=boom"])
def test_a_node_that_fails_after_the_last_barrier_causes_a_warning(
    how: str, tmp_path: Path
) -> None:
    log = log_path(tmp_path, "ps:0")
    scripts = {
        "worker:0": f"state=saving state=writing ended={log} result state=done",
        "ps:0": f"pid state=saving state=done {how}",
    }
    run = outcome(scripts, tmp_path)
    assert replace(run, warnings=()) == replace(RESULT, failed_late=True)
    (warning,) = run.warnings
    assert warning.startswith("ps:0 ")
    assert AFTER in warning


def test_a_node_killed_just_before_the_last_barrier_is_reported_causes_a_warning(
    tmp_path: Path,
) -> None:
    log = log_path(tmp_path, "ps:0")
    scripts = {
        "worker:0": f"state=saving ended={log} state=writing slow=1 result state=done",
        "ps:0": "pid state=saving kill=SIGKILL",
    }
    run = outcome(scripts, tmp_path)
    assert replace(run, warnings=()) == replace(RESULT, failed_late=True)
    (warning,) = run.warnings
    assert warning.startswith("ps:0 was killed by SIGKILL")


@pytest.mark.parametrize("how", ["exit=139", "kill=SIGKILL", "fail=boom", "exit=0"])
def test_a_node_that_fails_while_saving_ends_the_run(how: str, tmp_path: Path) -> None:
    scripts = {"worker:0": "state=saving wait", "ps:0": f"state=saving {how}"}
    assert failure(scripts, tmp_path).startswith("ps:0 ")


def test_a_file_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    scripts = {
        "worker:0": "state=saving state=writing fail=full exit=1",
        "ps:0": "state=saving state=done",
    }
    message = failure(scripts, tmp_path)
    assert message.startswith("worker:0 failed: step 1: full\n")


def test_a_node_that_freezes_after_the_result_causes_a_warning(tmp_path: Path) -> None:
    ps = log_path(tmp_path, "ps:0")
    scripts = {
        "worker:0": f"state=writing frozen={ps} result state=done",
        "ps:0": "pid state=saving kill=SIGSTOP",
    }
    run = outcome(scripts, tmp_path)
    frozen = "its process is frozen: a signal has stopped it"
    warning = f"ps:0 did not end{AFTER}\n  {frozen}\n  log: {ps}"
    assert run == replace(RESULT, warnings=(warning,), failed_late=True)
    assert not runs(logged(tmp_path, "ps:0", "pid"))


def test_a_node_that_freezes_while_it_writes_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "FROZEN_GRACE", 0.2)
    scripts = {"worker:0": "pid state=writing kill=SIGSTOP", "ps:0": "state=done"}
    assert failure(scripts, tmp_path) == (
        "worker:0 did not end\n"
        "  its process is frozen: a signal has stopped it\n"
        f"  log: {log_path(tmp_path, 'worker:0')}"
    )
    assert not runs(logged(tmp_path, "worker:0", "pid"))


def test_a_frozen_node_that_its_peers_lost_is_named_and_ended(tmp_path: Path) -> None:
    log = log_path(tmp_path, "ps:0")
    message = failure(
        {
            "worker:0": f"frozen={log} hear=ps:0 exit=1",
            "ps:0": "pid kill=SIGSTOP",
        },
        tmp_path,
    )
    assert message == (
        "ps:0 failed: step 1: lost: no heartbeat\n"
        "  its process is frozen: a signal has stopped it\n"
        f"  log: {log}"
    )
    assert not runs(logged(tmp_path, "ps:0", "pid"))


def test_an_engine_may_tell_later_than_another_node_why_a_node_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of ps:0 is seen some checks after worker:0 has reported and ended."""
    for name in ("ROOT_REPORT_GRACE", "PEER_EXIT_GRACE"):
        monkeypatch.setattr(supervise, name, 0.0)
    monkeypatch.setattr(frozen, "CHECK", TIMEOUT)
    is_stopped, checks = NodeProcess.is_stopped, list[str]()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def end_late(child: NodeProcess) -> bool:
        checks.append(child.node)
        if checks.count("ps:0") == 5:
            os.kill(logged(tmp_path, "ps:0", "pid"), signal.SIGKILL)
        return is_stopped(child)

    def watch(event: Event) -> None:
        if isinstance(event, State):  # of ps:0
            fifo.write_bytes(b"")

    def start(node: str, log: Path, takes_orders: bool) -> NodeProcess:
        words = [sys.executable, str(SCRIPTED), node, *scripts[node].split()]
        child = start_node(node, words, log, os.environ, takes_orders=takes_orders)
        child.job = "a job"
        return child

    monkeypatch.setattr(NodeProcess, "is_stopped", end_late)
    scripts = {
        "worker:0": f"fifo={fifo} hear=ps:0 exit=1",
        "ps:0": "pid state=running wait",
    }
    with pytest.raises(RunError, match=r"^ps:0 was killed by SIGKILL"):
        launch_nodes(list(scripts), start, tmp_path, watch, Interruption())


def test_a_node_that_freezes_before_it_joins_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once as a warning, while the others wait for it, and in their error."""
    monkeypatch.setattr(frozen, "CHECK", 0.0)
    monkeypatch.setattr(supervise, "ROOT_REPORT_GRACE", 0.3)
    fifo, named = tmp_path / "fifo", []
    os.mkfifo(fifo)

    def watch(event: Event) -> None:
        if isinstance(event, NodeWarning):
            named.append(event.message)
            fifo.write_bytes(b"")  # the other one goes on

    scripts = {
        "worker:0": f"fifo={fifo} fail=ps:0_did_not_join exit=1",
        "ps:0": "pid kill=SIGSTOP",
    }
    with pytest.raises(RunError) as caught:
        outcome(scripts, tmp_path, watch)
    assert named == ["ps:0 is frozen: a signal has stopped its process"]
    assert "ps:0_did_not_join" in str(caught.value)
    assert f"\n  {named[0]}" in str(caught.value)


def test_a_process_that_the_system_cannot_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that waits for a network drive: SIGKILL has no effect on it."""
    monkeypatch.setattr(supervise, "KILL_LIMIT", 0.2)
    kill, seen = NodeProcess.kill, []
    children: dict[str, NodeProcess] = {}

    def kill_others(child: NodeProcess) -> None:
        children[child.node] = child
        if child.node != "ps:0":
            kill(child)

    monkeypatch.setattr(NodeProcess, "kill", kill_others)
    scripts = {"worker:0": "fail=boom exit=1", "ps:0": "pid wait"}
    with pytest.raises(RunError, match="worker:0 failed: step 1: boom"):
        outcome(scripts, tmp_path, seen.append)
    (warning,) = [each for each in seen if isinstance(each, NodeWarning)]
    assert "ps:0 was killed, but its process has not ended" in warning.message
    assert children["ps:0"].process.end() == -signal.SIGKILL


def test_nodes_are_started_again_if_forks_have_ended(tmp_path: Path) -> None:
    """Those that were started before, too; the others wait for all."""
    scripts = {"worker:0": "pid state=done result", "ps:0": "state=done"}
    started: list[str] = []

    def start(node: str, log: Path, takes_orders: bool) -> NodeProcess:
        started.append(node)
        if started == ["worker:0", "ps:0"]:
            raise ForksEnded
        words = "pid kill=SIGSTOP" if started == ["worker:0"] else scripts[node]
        command = [sys.executable, str(SCRIPTED), node, *words.split()]
        child = start_node(node, command, log, os.environ, takes_orders=takes_orders)
        if started == ["worker:0"]:  # as the system does when the server has ended
            child.kill()
        return child

    watch = show_output
    assert launch_nodes([*scripts], start, tmp_path, watch, Interruption()) == RESULT
    assert started == ["worker:0", "ps:0"] * 2


def test_a_node_that_runs_on_after_a_failure_is_killed(tmp_path: Path) -> None:
    scripts = {"worker:0": "pid wait", "ps:0": "fail=boom exit=1"}
    assert failure(scripts, tmp_path).startswith("ps:0 failed: step 1: boom\n")
    assert not runs(logged(tmp_path, "worker:0", "pid"))


def test_processes_that_a_node_started_end_with_it(tmp_path: Path) -> None:
    launch_and_wait({"worker:0": "child state=done result"}, tmp_path)
    child = logged(tmp_path, "worker:0", "child")
    wait_for_end(child)


def test_a_node_may_close_its_pipe_before_it_ends(tmp_path: Path) -> None:
    result = launch_and_wait(
        {"worker:0": "state=done result close_reports exit=0"}, tmp_path
    )
    assert result.steps == 1


def test_an_invalid_event_ends_the_run(tmp_path: Path) -> None:
    message = failure({"worker:0": "garbage wait", "ps:0": "pid wait"}, tmp_path)
    assert message == "worker:0 reported an invalid event: 'not an event'"


def test_if_a_node_cannot_be_started_the_others_are_ended(tmp_path: Path) -> None:
    def command(node: str) -> list[str]:
        words = [str(SCRIPTED), node, "child", "wait"]
        return [sys.executable if node == "worker:0" else "/no/such/python", *words]

    nodes = ["worker:0", "ps:0"]
    with pytest.raises(RunError, match="ps:0 cannot be started"):
        launch_nodes(
            nodes, starter(command), tmp_path, lambda event: None, Interruption()
        )
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    assert not any(str(SCRIPTED) in cmdline(pid) for pid in children.split())


def cmdline(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_an_error_in_the_watch_function_ends_all_nodes(tmp_path: Path) -> None:
    def watch(event: Event) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        launch_and_wait({"worker:0": "pid state=running wait"}, tmp_path, watch)
    assert not runs(logged(tmp_path, "worker:0", "pid"))


LAUNCHER = """
import os, signal, sys
from pathlib import Path
from placer.launcher.node_process import start_node
from placer.launcher.processes import launch_nodes
from placer.runtime.signals.interruption import Interruption
scripted, logs = sys.argv[1:]
# The handlers of a program started by a shell; under nohup, SIGHUP would be ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
def start(node, log, takes_orders):
    command = [sys.executable, scripted, node, "pid", "state=running", "wait"]
    return start_node(node, command, log, os.environ, takes_orders=takes_orders)
def watch(event):
    print(event.node, flush=True)
nodes = ["worker:0", "ps:0"]
launch_nodes(nodes, start, Path(logs), watch, Interruption())
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
def test_a_signal_to_the_launcher_ends_all_nodes(
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
        assert launcher.wait(TIMEOUT) == status
    for pid in pids:
        wait_for_end(pid)


def test_a_missing_log_does_not_hide_the_failure(tmp_path: Path) -> None:
    assert last_line(tmp_path / "gone.log") == ""


def test_a_process_that_cannot_be_watched_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def refuse(pid: int) -> int:
        started.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    before = set(os.listdir("/proc/self/fd"))
    assert "a:0 cannot be started" in failure({"a:0": "wait"}, tmp_path)
    assert len(started) == 1
    assert not runs(started[0])
    assert set(os.listdir("/proc/self/fd")) == before


def test_output_of_nodes_is_shown_with_their_names_and_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = {"worker:0": "print=hello result", "worker:1": "print=there state=done"}
    launch_and_wait(scripts, tmp_path, show_output)
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(err.splitlines()) == [
        "worker:0| hello\N{REPLACEMENT CHARACTER}[2J",
        "worker:1| there\N{REPLACEMENT CHARACTER}[2J",
    ]


def test_a_failed_run_names_its_last_checkpoint(tmp_path: Path) -> None:
    scripts = {"worker:0": "saved=kept/a saved=kept/b exit=1", "ps:0": "wait"}
    assert failure(scripts, tmp_path) == (
        "worker:0 ended with exit status 1\n"
        f"  log: {log_path(tmp_path, 'worker:0')}\n"
        "  continue with --checkpoint kept --resume kept/b"
    )
