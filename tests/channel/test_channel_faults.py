"""Nodes that die, freeze or are slow, as real processes, over each transport."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.free_addresses import eventually, free_addresses, port
from support.marks import slow_but

from placer.channel.interface import Key
from placer.channel.keys import RunKey
from placer.channel.session import Session
from placer.channel.sockets import unix_address

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "channel_node.py"
FAST = {"beat": 0.2, "lost_after": 1.0}
SILENT = "lost: no heartbeat for 4 s"
LOST = {"shared": "lost: its process has ended"}
"""What other nodes report about a killed node, if they do not find it by its silence."""

Node = subprocess.Popen[str]
WAITING = {"ps:0": "wait worker:0", "worker:0": "wait ps:0", "worker:1": "wait ps:0"}


@contextmanager
def run(
    transport: str, roles: Mapping[str, str], **options: float
) -> Iterator[dict[str, Node]]:
    """Run a process for each node, all joined; kill them at the end."""
    addresses = free_addresses(list(roles))
    nodes = {
        node: start(node, role_and_peer, transport, addresses, **options)
        for node, role_and_peer in roles.items()
    }
    try:
        for process in nodes.values():
            expect_line(process, "joined")
        yield nodes
    finally:
        for process in nodes.values():
            process.kill()
            process.communicate()


def start(
    node: str,
    role_and_peer: str,
    transport: str,
    addresses: Mapping[str, str],
    **options: float,
) -> Node:
    role, peer = role_and_peer.rsplit(maxsplit=1)
    arguments = [
        node,
        role,
        peer,
        transport,
        json.dumps(addresses),
        json.dumps(options),
    ]
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def expect_line(process: Node, word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"


def last_line(process: Node, within: float = 10) -> str:
    """Return the last line that a node prints; it must exit with 0 in that time."""
    arguments = process.communicate(timeout=within)[0].strip().splitlines()[-1]
    assert process.returncode == 0
    return arguments


def test_killed_and_frozen_nodes_are_reported_when_they_are_lost(transport):
    limits = {"lost_after": 4.0}
    with (
        run(transport, WAITING, **limits) as killed,
        run(transport, WAITING, **limits) as frozen,
    ):
        killed["worker:1"].send_signal(signal.SIGKILL)
        frozen["worker:1"].send_signal(signal.SIGSTOP)
        lost = LOST.get(transport, SILENT), SILENT
        for nodes, arguments in zip((killed, frozen), lost, strict=True):
            for node in ("ps:0", "worker:0"):
                message = last_line(nodes[node])
                assert message.startswith("worker:1: seen from ")
                assert message.endswith(arguments)


@pytest.mark.parametrize("lost", ["ps:0", "worker:0"])
def test_every_node_reports_the_killed_node(transport, lost):
    with run(transport, WAITING, **FAST) as nodes:
        nodes[lost].send_signal(signal.SIGKILL)
        for node in set(WAITING) - {lost}:
            assert last_line(nodes[node]).startswith(f"{lost}: seen from ")


@pytest.mark.parametrize(
    "number", slow_but([signal.SIGKILL], [signal.SIGKILL, signal.SIGSTOP])
)
@pytest.mark.parametrize(
    ("roles", "lost", "word"),
    [
        ({"a:0": "send b:0", "b:0": "receive a:0"}, "a:0", "sending"),
        ({"a:0": "send b:0", "b:0": "receive a:0"}, "b:0", "receiving"),
    ],
    ids=["sender", "receiver"],
)
def test_node_lost_during_messages_is_reported(transport, roles, lost, word, number):
    """The receiver checks each message that is complete by then."""
    roles = {**roles, "c:0": "wait a:0"}
    with run(transport, roles, bound=8 << 20, **FAST) as nodes:
        expect_line(nodes[lost], word)
        expect_line(nodes[lost], word)
        nodes[lost].send_signal(number)
        for node in set(roles) - {lost}:
            assert last_line(nodes[node]).startswith(f"{lost}: seen from ")


def test_frozen_node_that_continues_learns_that_it_was_lost(transport):
    with run(transport, WAITING, **FAST) as nodes:
        nodes["ps:0"].send_signal(signal.SIGSTOP)
        for node in ("worker:0", "worker:1"):
            assert last_line(nodes[node]).startswith("ps:0: seen from ")
        nodes["ps:0"].send_signal(signal.SIGCONT)
        assert last_line(nodes["ps:0"]).startswith("ps:0: seen from ")


@pytest.mark.parametrize("bound", [1 << 20, 64 << 20])
def test_slow_receiver_makes_the_sender_wait_and_loses_nothing(transport, bound):
    """200 MB, more than the bound and any buffer. The sender prints at 100 MB again."""
    roles = {"a:0": "send all b:0", "b:0": "receive late a:0"}
    with run(transport, roles, bound=bound) as nodes:
        expect_line(nodes["a:0"], "sending")
        eventually(lambda: is_asleep(nodes["a:0"].pid))
        assert not select.select([nodes["a:0"].stdout], [], [], 0)[0]
        assert nodes["b:0"].stdin is not None
        nodes["b:0"].stdin.write("now\n")
        nodes["b:0"].stdin.flush()
        assert [last_line(node, 60) for node in nodes.values()] == ["done", "done"]


def thread_states(pid: int) -> set[str]:
    """Return the states of the threads of a process, in the letters of `ps`."""
    return {
        stat.read_text().rpartition(")")[2].split()[0]
        for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    }


def is_asleep(pid: int) -> bool:
    """Whether every thread of a process sleeps."""
    return thread_states(pid) == {"S"}


def test_node_that_is_stopped_during_join_continues(monkeypatch):
    """Meanwhile the other node has closed connections, which it finds when it wakes."""
    monkeypatch.setattr("placer.channel.connecting.HELLO_TIMEOUT", 0.02)
    addresses = free_addresses(["a:0", "b:0"])
    where = unix_address("test job", "a:0", port(addresses["a:0"])).decode()
    stopped = start("a:0", "wait b:0", "shared", addresses)
    try:
        eventually(lambda: f"@{where[1:]}" in Path("/proc/net/unix").read_text(), 60)
        stopped.send_signal(signal.SIGSTOP)
        eventually(lambda: thread_states(stopped.pid) == {"T"})
        opened = Session(
            "b:0", addresses, "test job", key=RunKey(bytes(32)), join_timeout=20
        )
        with closing(opened) as channel:
            eventually(lambda: channel.joining.refused > 2)
            monkeypatch.undo()
            stopped.send_signal(signal.SIGCONT)
            channel.join()
            channel.send("a:0", Key(2, 1), [])
            assert last_line(stopped) == "done"
    finally:
        stopped.kill()
        stopped.communicate()
