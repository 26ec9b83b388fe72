"""A first signal to a launcher lets the nodes save, but not for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from placer.runtime.run.events import STOPPING

SCRIPTED = Path(__file__).parents[1] / "support" / "scripted_node.py"
ENOUGH = 60.0

LAUNCHER = """
import os, signal, sys
from pathlib import Path
from placer.launcher import signals, supervise
from placer.launcher.node_events import Failed, State, Warned
from placer.launcher.local import launch_nodes
supervise.TERM_GRACE = 0.3
scripted, logs, grace, twins, saves, control = sys.argv[1:]
signals.SAVE_GRACE = float(grace)
signals.TWINS = float(twins)
signal.signal(signal.SIGINT, signal.default_int_handler)
last = [f"ended={logs}/worker-0.log", "state=done"] if "result" in control else ["wait"]
scripts = {"worker:0": ["pid", *control.split()], "ps:0": ["state=running", *last]}
def command(node):
    return [sys.executable, scripted, node, *scripts[node]]
def watch(event):
    if isinstance(event, Failed):
        print(event.cause.node, "failed", flush=True)
    if isinstance(event, (State, Warned)):
        said = event.message if isinstance(event, Warned) else event.state
        print(getattr(event, "node", ""), said, flush=True)
launch_nodes(list(scripts), command, Path(logs), os.environ, watch, saves=Path(saves) if saves else None)
"""
SAVES = "ordered state=saving state=done result"


def interrupted(
    logs: Path,
    script: str,
    number: int,
    *,
    again: bool = False,
    grace: float = ENOUGH,
    twins: float = 0.0,
    saves: str = "p",
    fifo: Path | None = None,
) -> tuple[int, str]:
    """The exit status of a launcher that gets a signal once the control node, which
    does what its script says, is in its first state or has failed, and the last that it
    says. With `again` it gets another one, by default once it has said that it will
    save, and with `twins`, the seconds in which two are one, at once. Where the node
    waits for a `fifo`, that is let go once the signal was sent."""
    command = [sys.executable, "-c", LAUNCHER, str(SCRIPTED), str(logs), str(grace)]
    command += [str(twins), saves]
    with subprocess.Popen(
        [*command, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        while not launcher.stdout.readline().startswith("worker:0 "):
            pass
        launcher.send_signal(number)
        if again:
            while not twins and launcher.stdout.readline() != f" {STOPPING}\n":
                pass
            launcher.send_signal(number)
        if fifo is not None:
            fifo.write_bytes(b"")
        _, err = launcher.communicate(timeout=ENOUGH)
        return launcher.returncode, err


@pytest.mark.parametrize(
    ("number", "status", "last"),
    [
        (signal.SIGINT, -signal.SIGINT, []),
        (signal.SIGTERM, 128 + signal.SIGTERM, ["ended by SIGTERM"]),
    ],
)
def test_a_signal_lets_the_nodes_save(tmp_path, number, status, last):
    found, err = interrupted(tmp_path, f"state=running {SAVES}", number)
    assert found == status
    saved = err.splitlines()[-1 - len(last)].removeprefix("KeyboardInterrupt: ")
    assert saved == "stopped after step 1; the parameters are in p"
    assert err.splitlines()[len(err.splitlines()) - len(last) :] == last


def test_a_signal_that_comes_twice_at_once_is_one(tmp_path):
    script = f"state=running {SAVES}"
    _, err = interrupted(tmp_path, script, signal.SIGTERM, again=True, twins=ENOUGH)
    assert "stopped after step 1; the parameters are in p\n" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_hides_no_failure_that_came_before(tmp_path, number):
    status, err = interrupted(tmp_path, "fail=boom wait", number, saves="")
    assert status in (-number, 128 + number)
    assert "the run had failed: worker:0 failed: step 1: boom" in err


def test_ctrl_c_waits_for_a_step_as_long_as_it_takes(tmp_path):
    script = f"state=running {SAVES}"
    _, err = interrupted(tmp_path, script, signal.SIGINT, grace=0.0)
    assert err.endswith("stopped after step 1; the parameters are in p\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_a_file_be_written_to_its_end(tmp_path, number):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = f"state=writing told={fifo} state=done result"
    _, err = interrupted(tmp_path, script, number, grace=0.0, fifo=fifo)
    assert "stopped after step 1; the parameters are in p\n" in err
    assert "nothing was saved" not in err


@pytest.mark.parametrize(
    ("script", "again", "grace", "why"),
    [
        ("state=compiling wait", False, ENOUGH, "there was no step yet"),
        ("state=running wait", False, 0.2, "the nodes did not stop within 0.2 s"),
        ("state=running deaf wait", True, ENOUGH, "there was a second signal"),
        ("state=running ordered state=saving wait", True, 0.2, "a second signal"),
        ("state=running ordered fail=broken wait", False, ENOUGH, "broken"),
    ],
)
def test_what_does_not_save_is_ended(tmp_path, script, again, grace, why):
    status, err = interrupted(
        tmp_path, script, signal.SIGTERM, again=again, grace=grace
    )
    assert status == 128 + signal.SIGTERM
    saved, last = err.splitlines()[-2:]
    assert saved.startswith("nothing was saved: ")
    assert saved.endswith(why)
    assert last == "ended by SIGTERM"
