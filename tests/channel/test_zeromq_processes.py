"""Nodes that die or freeze, as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests_channel_support import free_addresses

NODES = ("ps:0", "worker:0", "worker:1")
PROGRAM = Path(__file__).with_name("channel_node.py")
ROOT = Path(__file__).parents[2]


@contextmanager
def run(**options: float) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Processes of three nodes, all joined; none is left behind."""
    addresses = json.dumps(free_addresses(NODES))
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    nodes = {
        node: subprocess.Popen(
            [sys.executable, str(PROGRAM), node, addresses, json.dumps(options)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        for node in NODES
    }
    try:
        for process in nodes.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "joined\n"
        yield nodes
    finally:
        for process in nodes.values():
            process.kill()
            process.communicate()


def ending(process: subprocess.Popen[str], within: float) -> str:
    return process.communicate(timeout=within)[0].strip()


def test_a_killed_and_a_frozen_node_are_named_within_ten_seconds_by_default():
    with run() as killed, run() as frozen:
        killed["worker:1"].send_signal(signal.SIGKILL)
        frozen["worker:1"].send_signal(signal.SIGSTOP)
        for nodes in (killed, frozen):
            for node in ("ps:0", "worker:0"):
                message = ending(nodes[node], within=10)
                assert message.startswith("worker:1: seen from ")
                assert message.endswith(": lost: no heartbeat for 8 s")
                assert nodes[node].returncode == 0


@pytest.mark.parametrize("lost", ["ps:0", "worker:0"])
def test_every_node_names_the_one_that_was_killed(lost):
    with run(beat=0.2, lost_after=1.0) as nodes:
        nodes[lost].send_signal(signal.SIGKILL)
        for node in set(NODES) - {lost}:
            assert ending(nodes[node], within=10).startswith(f"{lost}: seen from ")


def test_a_frozen_node_that_goes_on_learns_that_it_was_lost():
    with run(beat=0.2, lost_after=1.0) as nodes:
        nodes["ps:0"].send_signal(signal.SIGSTOP)
        for node in ("worker:0", "worker:1"):
            assert ending(nodes[node], within=10).startswith("ps:0: seen from ")
        nodes["ps:0"].send_signal(signal.SIGCONT)
        assert ending(nodes["ps:0"], within=10).startswith("ps:0: seen from ")
