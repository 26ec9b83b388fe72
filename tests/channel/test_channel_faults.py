"""Nodes that die, freeze or dawdle, as real processes, over each carrier."""

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
from support.free_addresses import eventually, free_addresses

from placer.channel.protocol import Key
from placer.channel.shared import rendezvous
from placer.channel.shared.channel import SharedMemoryChannel

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "channel_node.py"
QUICK = {"beat": 0.2, "lost_after": 1.0}
LOST = {
    "zeromq": "lost: no heartbeat for 8 s",
    "shared": "lost: its process has ended",
}
"""What the others say of a node that was killed."""

Node = subprocess.Popen[str]
WAITING = {"ps:0": "wait worker:0", "worker:0": "wait ps:0", "worker:1": "wait ps:0"}


@contextmanager
def run(
    carrier: str, roles: Mapping[str, str], **options: float
) -> Iterator[dict[str, Node]]:
    """A process for each node, all joined; none is left behind."""
    addresses = free_addresses(list(roles))
    nodes = {
        node: start(node, play, carrier, addresses, **options)
        for node, play in roles.items()
    }
    try:
        for process in nodes.values():
            hear(process, "joined")
        yield nodes
    finally:
        for process in nodes.values():
            process.kill()
            process.communicate()


def start(
    node: str, play: str, carrier: str, addresses: Mapping[str, str], **options: float
) -> Node:
    role, peer = play.rsplit(maxsplit=1)
    said = [node, role, peer, carrier, json.dumps(addresses), json.dumps(options)]
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *said],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def hear(process: Node, word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"


def ending(process: Node, within: float = 10) -> str:
    """The last thing that a node says, which must end well within that time."""
    said = process.communicate(timeout=within)[0].strip().splitlines()[-1]
    assert process.returncode == 0
    return said


def test_a_killed_and_a_frozen_node_are_named_within_ten_seconds_by_default(carrier):
    with run(carrier, WAITING) as killed, run(carrier, WAITING) as frozen:
        killed["worker:1"].send_signal(signal.SIGKILL)
        frozen["worker:1"].send_signal(signal.SIGSTOP)
        lost = LOST[carrier], "lost: no heartbeat for 8 s"
        for nodes, said in zip((killed, frozen), lost, strict=True):
            for node in ("ps:0", "worker:0"):
                message = ending(nodes[node])
                assert message.startswith("worker:1: seen from ")
                assert message.endswith(said)


@pytest.mark.parametrize("lost", ["ps:0", "worker:0"])
def test_every_node_names_the_one_that_was_killed(carrier, lost):
    with run(carrier, WAITING, **QUICK) as nodes:
        nodes[lost].send_signal(signal.SIGKILL)
        for node in set(WAITING) - {lost}:
            assert ending(nodes[node]).startswith(f"{lost}: seen from ")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(
    ("roles", "lost", "word"),
    [
        ({"a:0": "send b:0", "b:0": "receive a:0"}, "a:0", "sending"),
        ({"a:0": "send b:0", "b:0": "receive a:0"}, "b:0", "receiving"),
    ],
    ids=["sender", "receiver"],
)
def test_a_node_lost_in_the_middle_of_messages_is_named(
    carrier, roles, lost, word, number
):
    """What was whole by then was right: the receiver checks each message."""
    roles = {**roles, "c:0": "wait a:0"}
    with run(carrier, roles, bound=8 << 20, **QUICK) as nodes:
        hear(nodes[lost], word)
        hear(nodes[lost], word)
        nodes[lost].send_signal(number)
        for node in set(roles) - {lost}:
            assert ending(nodes[node]).startswith(f"{lost}: seen from ")


def test_a_frozen_node_that_goes_on_learns_that_it_was_lost(carrier):
    with run(carrier, WAITING, **QUICK) as nodes:
        nodes["ps:0"].send_signal(signal.SIGSTOP)
        for node in ("worker:0", "worker:1"):
            assert ending(nodes[node]).startswith("ps:0: seen from ")
        nodes["ps:0"].send_signal(signal.SIGCONT)
        assert ending(nodes["ps:0"]).startswith("ps:0: seen from ")


@pytest.mark.parametrize("bound", [1 << 20, 64 << 20])
def test_a_slow_reader_makes_the_sender_wait_and_nothing_is_lost(carrier, bound):
    """200 MB: more than the bound and any buffer. It says so at 100 MB again."""
    roles = {"a:0": "send all b:0", "b:0": "receive late a:0"}
    with run(carrier, roles, bound=bound) as nodes:
        hear(nodes["a:0"], "sending")
        eventually(lambda: asleep(nodes["a:0"].pid))
        assert not select.select([nodes["a:0"].stdout], [], [], 0)[0]
        assert nodes["b:0"].stdin is not None
        nodes["b:0"].stdin.write("now\n")
        nodes["b:0"].stdin.flush()
        assert [ending(node, 60) for node in nodes.values()] == ["done", "done"]


def states(pid: int) -> set[str]:
    """What the threads of a process do, in the letters of `ps`."""
    return {
        stat.read_text().rpartition(")")[2].split()[0]
        for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    }


def asleep(pid: int) -> bool:
    """Whether no thread of a process runs: each waits for something."""
    return states(pid) == {"S"}


def test_a_node_that_is_stopped_while_others_join_goes_on(monkeypatch):
    """The other one has given up connections meanwhile, which it finds when it wakes."""
    monkeypatch.setattr(rendezvous, "PATIENCE", 0.02)
    addresses = free_addresses(["a:0", "b:0"])
    where = rendezvous.address("test job", "a:0", addresses["a:0"]).decode()
    stopped = start("a:0", "wait b:0", "shared", addresses)
    try:
        eventually(lambda: f"@{where[1:]}" in Path("/proc/net/unix").read_text(), 60)
        stopped.send_signal(signal.SIGSTOP)
        eventually(lambda: states(stopped.pid) == {"T"})
        made = SharedMemoryChannel("b:0", addresses, "test job", join_timeout=20)
        with closing(made) as channel:
            eventually(lambda: channel.refused > 2)
            monkeypatch.undo()
            stopped.send_signal(signal.SIGCONT)
            channel.join()
            channel.send("a:0", Key(2, 1), [])
            assert ending(stopped) == "done"
    finally:
        stopped.kill()
        stopped.communicate()
