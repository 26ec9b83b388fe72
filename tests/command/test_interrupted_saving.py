"""A first signal to a launcher lets the nodes save, within a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pytest

SCRIPTED = Path(__file__).parents[1] / "support" / "scripted_node.py"
TIMEOUT = 60.0

LAUNCHER = """
import os, signal, sys
from pathlib import Path
from placer.runtime.control.events import NodeFailure, NodeWarning, State
from placer.launcher.node_process import start_node
from placer.launcher.processes import launch_nodes
from placer.runtime.signals import signals
from placer.runtime.signals.interruption import Interruption
scripted, logs, grace, window, params_file, control = sys.argv[1:]
signals.DUPLICATE_WINDOW = float(window)
signal.signal(signal.SIGINT, signal.default_int_handler)
last = [f"ended={logs}/worker-0.log", "state=done"] if "result" in control else ["wait"]
scripts = {"worker:0": ["pid", *control.split()], "ps:0": ["state=running", *last]}
def start(node, log, takes_orders):
    command = [sys.executable, scripted, node, *scripts[node]]
    return start_node(node, command, log, os.environ, takes_orders=takes_orders)
def watch(event):
    if isinstance(event, NodeFailure):
        print(event.cause.node, "failed", flush=True)
    if isinstance(event, (State, NodeWarning)):
        text = event.message if isinstance(event, NodeWarning) else event.state
        print(getattr(event, "node", ""), text, flush=True)
with signals.end_shown():
    launch_nodes(list(scripts), start, Path(logs), watch,
        Interruption(Path(params_file) if params_file else None, grace=float(grace)))
"""
SAVING = "await_order state=saving state=done result"


def interrupt_launcher(
    logs: Path,
    script: str,
    number: int | None,
    *,
    again: bool = False,
    grace: float = TIMEOUT,
    window: float = 0.0,
    params_file: str = "p",
    fifo: Path | None = None,
) -> tuple[int, str]:
    """Send a signal to a launcher; return its exit status and stderr.

    The signal is sent when the control node, which runs `script`, reports its first
    state or fails. With `again` it is sent a second time: after the launcher has
    printed that it will save, or at once if there is a `window`, the seconds within
    which two signals count as one. With None, none is sent. If the script waits for a `fifo`, it continues after
    the signal.
    """
    command = [sys.executable, "-c", LAUNCHER, str(SCRIPTED), str(logs), str(grace)]
    command += [str(window), params_file]
    with subprocess.Popen(
        [*command, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        if number is not None:
            wait_for_line(launcher.stdout, "worker:0 ")
            launcher.send_signal(number)
        if again:
            if not window:
                wait_for_line(launcher.stdout, " interrupted: all nodes stop")
            launcher.send_signal(number)
        if fifo is not None:
            fifo.write_bytes(b"")
        _, err = launcher.communicate(timeout=TIMEOUT)
        return launcher.returncode, err


def wait_for_line(stream: TextIO, start: str) -> None:
    assert any(line.startswith(start) for line in stream), f"no '{start}'"


@pytest.mark.parametrize(
    ("number", "status", "last"),
    [
        (signal.SIGINT, -signal.SIGINT, []),
        (signal.SIGTERM, 128 + signal.SIGTERM, ["ended by SIGTERM"]),
    ],
)
def test_a_signal_lets_the_nodes_save(tmp_path, number, status, last):
    exit_status, err = interrupt_launcher(tmp_path, f"state=running {SAVING}", number)
    assert exit_status == status
    saved = err.splitlines()[-1 - len(last)].removeprefix("KeyboardInterrupt: ")
    assert saved == "stopped after step 1; the parameters are in p"
    assert err.splitlines()[len(err.splitlines()) - len(last) :] == last


def test_a_signal_to_the_launcher_and_a_node_stops_the_run_once(tmp_path):
    script = f"state=running kill=SIGTERM report_signals {SAVING}"
    status, err = interrupt_launcher(tmp_path, script, signal.SIGTERM)
    assert status == 128 + signal.SIGTERM
    assert err.splitlines() == [
        "stopped after step 1; the parameters are in p",
        "ended by SIGTERM",
    ]


def test_a_signal_to_a_node_before_the_first_step_ends_the_run(tmp_path):
    script = "kill=SIGTERM report_signals wait"
    status, err = interrupt_launcher(tmp_path, script, None)
    assert status == 128 + signal.SIGTERM
    assert err.splitlines() == [
        "nothing was saved: the first step had not finished",
        "ended by SIGTERM",
    ]


def test_two_signals_at_once_count_as_one(tmp_path):
    script = f"state=running {SAVING}"
    _, err = interrupt_launcher(
        tmp_path, script, signal.SIGTERM, again=True, window=TIMEOUT
    )
    assert "stopped after step 1; the parameters are in p\n" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_does_not_hide_an_earlier_failure(tmp_path, number):
    status, err = interrupt_launcher(tmp_path, "fail=boom wait", number, params_file="")
    assert status in (-number, 128 + number)
    assert "the run had failed: worker:0 failed: step 1: boom" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_does_not_interrupt_writing_the_file(tmp_path, number):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = f"state=writing fifo={fifo} state=done result"
    _, err = interrupt_launcher(tmp_path, script, number, grace=0.0, fifo=fifo)
    assert "stopped after step 1; the parameters are in p\n" in err
    assert "nothing was saved" not in err


@pytest.mark.parametrize(
    ("script", "again", "grace", "why"),
    [
        ("state=compiling wait", False, TIMEOUT, "the first step had not finished"),
        ("state=running wait", False, 0.2, "the nodes did not stop within 0.2 s"),
        ("state=running wait", True, TIMEOUT, "a second signal arrived"),
        (
            "state=running await_order state=saving wait",
            True,
            0.2,
            "a second signal arrived",
        ),
    ],
)
def test_nodes_that_do_not_save_are_ended(tmp_path, script, again, grace, why):
    status, err = interrupt_launcher(
        tmp_path, script, signal.SIGTERM, again=again, grace=grace
    )
    assert status == 128 + signal.SIGTERM
    saved, last = err.splitlines()[-2:]
    assert saved.startswith("nothing was saved: ")
    assert saved.endswith(why)
    assert last == "ended by SIGTERM"


def test_a_failure_while_all_nodes_stop_is_reported(tmp_path):
    script = "state=running await_order fail=broken wait"
    status, err = interrupt_launcher(tmp_path, script, signal.SIGTERM)
    assert status == 128 + signal.SIGTERM
    assert "the run had failed: worker:0 failed: step 1: broken\n" in err
