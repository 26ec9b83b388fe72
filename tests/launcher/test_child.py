"""How a process that this one has started ends, and what it writes."""

from __future__ import annotations

import doctest
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from subprocess import PIPE
from types import ModuleType

import pytest

from placer.launcher import child as child_module
from placer.launcher.child import Child, run_command
from placer.launcher.parent import with_parent
from placer.runtime.signals import signals

LIMIT = 60.0
SLEEP = ["sleep", "600"]
OUTSIDE = "setsid sleep 600 & echo $!; "
"""Leaves a process in another session, which has the pipes."""


def shell(code: str, *arguments: str) -> list[str]:
    return ["sh", "-c", code, "sh", *arguments]


def number_from(child: Child) -> int:
    return int(next(child.read(child.stdout)))


def has_ended(pid: int) -> bool:
    """Whether a process that is no child of this one has ended, or ends soon."""
    try:
        with open(os.pidfd_open(pid)) as file:
            return child_module.is_readable(file.fileno(), LIMIT)
    except ProcessLookupError:
        return True


@pytest.mark.parametrize(
    ("code", "status"), [("exit 3", 3), ("kill -TERM $$", -signal.SIGTERM)]
)
def test_the_status_is_that_of_subprocess(code: str, status: int) -> None:
    with Child.start(shell(code)) as child:
        assert child.wait(LIMIT) == status
        assert child.status == status


def test_the_end_of_a_process_is_the_end_of_its_group_but_of_no_other_one() -> None:
    with Child.start(shell("sleep 600 & echo $!"), stdout=PIPE) as child:
        other = number_from(child)
        assert child.wait(LIMIT) == 0
    assert has_ended(other)


@pytest.mark.parametrize(
    ("trap", "status"), [("exit 5", 5), ("", -signal.SIGKILL)], ids=["asked", "killed"]
)
def test_a_process_that_does_not_end_by_itself_is_killed(
    trap: str, status: int
) -> None:
    code = f"trap '{trap}' TERM; echo; while :; do sleep 0.01; done"
    with Child.start(shell(code), stdout=PIPE) as child:
        assert next(child.read(child.stdout)) == b"\n"
        child.signal(signal.SIGTERM)
        assert child.end(grace=LIMIT if trap else 0.0) == status


def test_a_frozen_process_is_seen_and_ends() -> None:
    with Child.start(SLEEP) as child:
        child.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert child.is_frozen()
        assert child.wait(0.0) is None
        assert child.end() == -signal.SIGKILL
        assert not child.is_frozen()


def test_a_process_that_the_system_does_not_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that waits for a network drive."""
    with Child.start(SLEEP) as child, monkeypatch.context() as patch:
        patch.setattr(child_module, "END_LIMIT", 0.0)
        patch.setattr(child, "kill", lambda: None)
        assert child.end() is None


def test_no_signal_is_sent_to_a_number_that_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Child.start(["true"]) as child:
        assert child.wait(LIMIT) == 0
        for name in ("kill", "killpg"):
            monkeypatch.setattr(os, name, lambda *_: pytest.fail("sent"))
        child.kill()
        child.signal(signal.SIGTERM)
        assert child.end() == 0


def test_a_process_is_killed_before_it_leads_a_group() -> None:
    with subprocess.Popen(SLEEP) as process, Child(process.pid) as child:
        assert child.end() == -signal.SIGKILL


@pytest.mark.parametrize("module", [child_module, signals])
def test_examples_of_exit_statuses(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_the_last_lines_of_a_process_that_is_killed_are_read() -> None:
    code = (
        "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; kill -KILL $$"
    )
    with Child.start(shell(code), stdout=PIPE) as child:
        lines = b"".join(child.read(child.stdout)).splitlines()
        assert lines == [f"line {i}".encode() for i in range(5000)]
        assert child.wait(LIMIT) == -signal.SIGKILL


def test_a_pipe_that_another_session_has_is_read_until_it_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_module, "SILENT", 0.1)
    with Child.start(shell(OUTSIDE), stdout=PIPE) as child:
        outside = int(b"".join(child.read(child.stdout)))
        assert child.wait(LIMIT) == 0
    os.kill(outside, signal.SIGKILL)


def test_another_process_is_started_after_the_end_of_the_first() -> None:
    """Nothing of the first one stays, as for a node that is started again."""
    before = os.listdir("/proc/self/fd")
    for _ in range(2):
        with Child.start(SLEEP, stdin=PIPE, stdout=PIPE, stderr=PIPE) as child:
            child.kill()
            assert child.wait(LIMIT) == -signal.SIGKILL
    assert os.listdir("/proc/self/fd") == before


def test_a_process_is_watched_where_the_system_has_no_descriptors_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with Child.start(SLEEP) as child:
        assert child.wait(0.0) is None
        assert child.end() == -signal.SIGKILL
    assert run_command(["echo", "a"], LIMIT).stdout == b"a\n"


START = """\
import sys
from placer.launcher.child import Child
from placer.launcher.parent import with_parent
command = sys.argv[2:]
child = Child.start(with_parent(command) if sys.argv[1] == "killed" else command)
print(child.pid, flush=True)
sys.argv[1] == "ended" or sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_a_process_ends_with_the_one_that_has_started_it(how: str) -> None:
    """By itself at the end of the interpreter, by the system if that is killed."""
    sleep = [shutil.which("sleep") or "", "600"]
    command: Sequence[str] = [sys.executable, "-c", START, how, *sleep]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        if how == "killed":
            starter.kill()
        starter.wait(LIMIT)
        assert has_ended(pid)


def test_a_command_that_ends_with_its_parent_becomes_another_one() -> None:
    done = run_command(with_parent([shutil.which("echo") or "", "a"]), LIMIT)
    assert (done.stdout, done.status) == (b"a\n", 0)
