"""Connections to a node that are not of a node of its run are refused, and the run goes
on; those of its nodes are established once both have agreed."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import threading
import time
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest
from support.free_addresses import eventually, exchange_messages, free_addresses, port
from support.own_resources import count_files
from support.raw_frames import BEAT, memory, message, packed, piece, raw
from support.raw_node import RawNode

from placer.channel import connecting, session
from placer.channel.connecting import HELLO_TIMEOUT, MAX_PENDING
from placer.channel.frame_socket import MAX_FILES, MAX_HELLO
from placer.channel.frames import Abort, Goodbye, encode
from placer.channel.interface import Cause
from placer.channel.keys import new_key
from placer.channel.session import Session
from placer.channel.sockets import unix_address
from placer.errors import RunError

SETRESUID = {"x86_64": 117, "aarch64": 147}
"""The number of setresuid; the system call changes the user of one thread only."""
FAILURE = encode(Abort("b:0", "", "forged"))


@pytest.fixture
def channels(between, addresses):
    """The joined channels of a:0 and b:0."""
    return between("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))


@pytest.fixture
def stranger(files_are_closed, channels, transport, make, addresses, monkeypatch):
    """A function that connects to a:0 as another process, which is refused at once."""
    monkeypatch.setattr(connecting, "HELLO_TIMEOUT", 600.0)
    before = channels["a:0"].joining.refused
    yield lambda: RawNode(transport, addresses, make.keywords.get("key"))
    eventually(lambda: channels["a:0"].joining.refused > before)
    exchange_messages(channels, 1)


@pytest.mark.parametrize("sent", [b"", BEAT[:63]], ids=["nothing", "half a frame"])
def test_connection_that_ends_before_its_hello_is_refused(stranger, sent):
    with stranger() as node:
        node.welcome()
        node.send(sent)
        node.finish()
        assert node.read_rest() == b""


FIRST_FRAMES = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4,
    "heartbeat": BEAT,
    "forged failure": FAILURE,
    "message": message(1, 5),
    "piece": piece(1, 0, 64),
    "memory": memory(1, 5000),
    "too long": raw(b"\x93\xa5Hello", MAX_HELLO),
    "another length": packed("Hello", ["test job", "", "b:0", "a:0", ["a:0"]]),
    "no names": packed("Hello"),
    "endless names": raw(b"\x94\xa5Hello\x95\xa0\xa0\xa0\xa0\xdd\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("sent", FIRST_FRAMES.values(), ids=FIRST_FRAMES)
def test_first_frame_that_is_no_hello_is_refused(stranger, sent):
    with stranger() as node:
        node.welcome()
        node.send(sent)
        assert node.read_rest() == b""


def test_silent_connection_is_refused(stranger, monkeypatch):
    monkeypatch.setattr(connecting, "HELLO_TIMEOUT", 0.01)
    with stranger() as node:
        node.welcome()
        assert node.read_rest() == b""


def test_connections_without_a_hello_are_bounded(stranger, channels):
    """The oldest ones are closed."""
    with ExitStack() as opened:
        nodes = [opened.enter_context(stranger()) for _ in range(3 * MAX_PENDING)]
        for node in nodes[: 2 * MAX_PENDING]:
            node.welcome()
            assert node.read_rest() == b""
        exchange_messages(channels, 2)
        nodes[-1].welcome()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"build": "another"}, "the build is different"),
        ({"job": "another"}, "the run is different"),
        ({"nodes": ["a:0", "b:0", "c:0"]}, "the run is different"),
        ({"to": "b:0"}, "the run is different"),
        ({"node": "c:0"}, "the nodes do not exchange messages"),
        ({"node": "a:0"}, "the nodes do not exchange messages"),
    ],
)
def test_node_that_is_refused_is_told_why(stranger, changed, why):
    with stranger() as node:
        node.send(node.hello(node.welcome(), **changed))
        assert node.refusal() == why


@pytest.mark.parametrize("transport", ["tcp"])
@pytest.mark.parametrize("mac", [b"", b"m" * 32], ids=["none", "wrong"])
def test_hello_without_the_key_is_refused(stranger, mac):
    with stranger() as node:
        node.send(node.hello(node.welcome(), mac=mac))
        assert node.refusal() == "the key is different"


@pytest.mark.parametrize("transport", ["tcp"])
def test_hello_for_another_connection_is_refused(stranger):
    """So one that was recorded cannot be used again."""
    with stranger() as first, stranger() as second:
        second.welcome()
        second.send(second.hello(first.welcome()))
        assert second.refusal() == "the key is different"


@pytest.mark.parametrize("transport", ["shared"])
@pytest.mark.parametrize("count", [1, MAX_FILES + 1])
def test_files_of_a_stranger_are_closed(stranger, count):
    before = count_files()
    with stranger() as node:
        data = node.hello(node.welcome(), job="another")
        for i in range(count):
            node.send(os.memfd_create("placer"), data[i : i + 1])
        node.send(data[count:])
        node.read_rest()
    eventually(lambda: count_files() == before)


@pytest.mark.skipif(
    os.geteuid() != 0 or platform.machine() not in SETRESUID,
    reason="only root can change its user",
)
@pytest.mark.parametrize("transport", ["shared"])
@pytest.mark.usefixtures("stranger")
def test_process_of_another_user_is_refused(addresses):
    where = unix_address("test job", "a:0", port(addresses["a:0"]))
    answers: list[bytes] = []

    def connect_as_another_user() -> None:
        call = ctypes.CDLL(None, use_errno=True).syscall
        assert call(SETRESUID[platform.machine()], -1, 65534, -1) == 0
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(where)
            answers.append(connection.recv(1000))

    thread = threading.Thread(target=connect_as_another_user, daemon=True)
    thread.start()
    thread.join(10)
    assert answers == [b""]


# Connections that are not established yet.


def test_connection_that_ends_after_the_answer_is_not_a_peer(alone):
    """As one that a node made and closed while the other node was stopped."""
    a, connect = alone
    for refused in (1, 2):
        with connect() as node:
            node.greet()
            node.finish()
            node.read_rest()
        assert a.joining.refused == refused
    assert not a.links["b:0"].is_joined
    with connect() as node:
        node.join()
        a.join()
        node.leave()


def test_answered_connection_has_no_timeout(alone, monkeypatch):
    """The node may be stopped then, and may consider itself connected."""
    a, connect = alone
    with connect() as node:
        node.greet()
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 2 * HELLO_TIMEOUT)
        monkeypatch.setattr(session, "time", later)
        with connect() as silent:
            silent.read_rest()  # its timeout has passed
        monkeypatch.undo()
        assert not a.links["b:0"].is_joined
        node.send(BEAT)
        a.join()
        node.leave()


def test_a_second_connection_of_a_peer(alone):
    """Over a unix socket the end of the first one would have been seen. Over TCP its end
    may have been lost, so the second one replaces it."""
    a, connect = alone
    with connect() as node, connect() as second:
        node.greet()
        if node.transport == "shared":
            second.send(second.hello(second.welcome()))
            assert second.refusal() == "the node is already connected"
            second = node
        else:
            second.greet()
            node.read_rest()
        second.send(BEAT)
        a.join()
        second.leave()


def test_answered_connection_is_not_closed_to_make_room(alone):
    a, connect = alone
    with connect() as node, ExitStack() as opened:
        node.greet()
        others = [opened.enter_context(connect()) for _ in range(MAX_PENDING)]
        others[0].welcome()
        assert others[0].read_rest() == b""
        node.send(BEAT)
        a.join()
        node.leave()


@pytest.mark.parametrize(
    "sent",
    [encode(Goodbye()), message(1, 5), FAILURE],
    ids=["goodbye", "message", "forged failure"],
)
def test_frame_other_than_a_beat_after_the_answer_is_refused(alone, sent):
    a, connect = alone
    with connect() as node:
        node.greet()
        node.send(sent)
        assert node.read_rest() == b""
    assert a.joining.refused == 1
    assert not a.links["b:0"].is_joined
    assert a.aborted is None


def test_answered_connection_receives_the_last_frame(alone, monkeypatch):
    monkeypatch.setattr("placer.channel.session.LATE_JOIN_WAIT", 0.01)
    a, connect = alone
    cause = Cause("a:0", "start", "no such file")
    with connect() as node:
        node.greet()
        a.abort(cause)
        a.close()
        assert node.read() == Abort.of(cause)
        assert node.read_rest() == b""


@pytest.mark.parametrize("transport", ["shared"])
def test_second_connection_of_a_node_on_this_machine_is_refused(alone):
    a, connect = alone
    with connect() as node, connect() as second:
        node.join()
        a.join()
        second.send(second.hello(second.welcome()))
        assert second.refusal() == "the node is already connected"
        node.leave()


# Nodes that do not agree.


def join_in_vain(make, first, second) -> str:
    """Open a:0 and b:0 with these options; return why b:0 cannot join a:0."""
    addresses = free_addresses(["a:0", "b:0"])

    def opened(node, others=(), **options) -> closing[Session]:
        known = {**addresses, **dict.fromkeys(others, "127.0.0.1:1")}
        options = {"job": "test job", "join_timeout": 0.01, **options}
        return closing(make(node, known, **options))

    with opened("a:0", **first) as a, opened("b:0", **second) as b:
        eventually(lambda: a.joining.refused > 1 and b.joining.refused > 1)
        with pytest.raises(RunError, match="b:0 did not join"):
            a.join()
        with pytest.raises(RunError, match="a:0 did not join") as raised:
            b.join()
    return raised.value.message


TLS = {"encrypt": True}
DIFFERENCES = {
    "job": ({}, {"job": "another"}, "the run is different"),
    "build": ({}, {"build": "another"}, "the build is different"),
    "nodes": ({}, {"others": ["c:0"]}, "the run is different"),
    "key": ({}, {"key": new_key()}, "the key is different"),
    "key of TLS": (TLS, {"key": new_key(), **TLS}, "the key is different"),
    "TLS": ({}, TLS, "the peer does not use TLS"),
}


@pytest.mark.parametrize("transport", ["tcp"])
@pytest.mark.parametrize("case", DIFFERENCES)
def test_nodes_that_do_not_agree_do_not_join_and_say_why(make, case):
    first, second, why = DIFFERENCES[case]
    assert why in join_in_vain(make, first, second)


@pytest.mark.parametrize("transport", ["tcp"])
def test_node_without_tls_does_not_join_one_with_tls(make, monkeypatch):
    """Each waits for the other one to begin."""
    monkeypatch.setattr(connecting, "HELLO_TIMEOUT", 0.05)
    why = join_in_vain(make, TLS, {})
    assert "the peer does not answer" in why or "the peer closed the connection" in why
