"""A second process of a node, started by mistake, is refused and does no harm."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from support.free_addresses import eventually, free_addresses

from placer.channel.frame_socket import FrameSocket
from placer.channel.incarnations import Incarnations
from placer.channel.interface import Aborted, Key
from placer.channel.session import Session
from placer.errors import RunError
from placer.system.memory.arena import Arena
from tests.channel.conftest import Alone


@pytest.fixture
def second(
    make: Any, transport: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Session]]:
    """Opens another process of the last of some nodes, at another address of its own."""
    monkeypatch.setattr("placer.channel.admission.SECOND_WAIT", 0.1)
    with ExitStack() as opened:

        def open_second(addresses: Mapping[str, str], **options: Any) -> Session:
            node = [*addresses][-1]
            other = free_addresses(["z:0"])["z:0"]
            if transport == "shared":
                addresses = {**addresses, node: other}
            else:
                options["bind"] = other
            session: Session = make(node, addresses, "job", join_timeout=20, **options)
            session.continues = True
            opened.callback(session.close)
            return session

        yield open_second


def is_refused(second: Session) -> str:
    """Return why a second process fails to join."""
    with pytest.raises(Aborted) as refused:
        second.join()
    assert second.is_replaced
    return str(refused.value)


@pytest.mark.parametrize("transport", ["shared", "tcp", "tls"])
def test_a_second_process_is_refused_while_the_first_one_is_heard(
    make: Any, spawn: Any, second: Any
) -> None:
    """Both addresses are named, and the run goes on, whichever of the clocks is behind and
    in whichever attempt the second process believes to be."""
    addresses = free_addresses(["a:0", "b:0", "c:0"])
    nodes = {
        node: make(
            node,
            addresses,
            "job",
            attempt=3,
            incarnations=Incarnations(own=5),
            deadline=20.0,
        )
        for node in addresses
    }
    for joining in [spawn(node.join) for node in nodes.values()]:
        joining.result(20)
    for own, attempt in ((6, 3), (4, 3), (6, 4), (6, 1)):
        text = is_refused(
            second(addresses, attempt=attempt, incarnations=Incarnations(own))
        )
        assert text.startswith("c:0: the node already runs at ")
        assert "; the second process is at " in text
        assert text.endswith(": end one of them")
    for step in (1, 2):
        nodes["c:0"].send("a:0", Key(1, step), [np.arange(3)])
        (got,) = nodes["a:0"].receive("c:0", Key(1, step))
        assert got.tolist() == [0, 1, 2]
    assert all(node.aborted is None for node in nodes.values())
    for closing in [spawn(node.close) for node in nodes.values()]:
        closing.result(20)


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_a_second_process_leaves_absent_peers_to_the_first_one(
    make: Any, spawn: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one has connected to some of its peers only."""
    monkeypatch.setattr("placer.channel.admission.SECOND_WAIT", 20.0)
    addresses = free_addresses(["a:0", "b:0", "c:0"])
    a, c = (make(node, addresses, "job") for node in ("a:0", "c:0"))
    eventually(lambda: a.links["c:0"].is_joined)
    another = second(addresses)
    eventually(lambda: "a:0" in another.second_since)
    with monkeypatch.context() as patched:
        patched.setattr(c.joining, "_tries", lambda _: False)
        b = make("b:0", addresses, "job")
        refused = another.joining.refused
        eventually(lambda: another.joining.refused > refused + 10)
        assert not b.links["c:0"].is_joined
    for joining in [spawn(node.join) for node in (a, b, c)]:
        joining.result(20)
    assert b.links["c:0"].incarnation == c.incarnations.own
    assert all(node.aborted is None for node in (a, b, c))
    for closing in [spawn(node.close) for node in (a, b, c)]:
        closing.result(20)


@pytest.mark.parametrize("transport", ["tcp"])
def test_a_second_process_does_not_use_a_broken_connection_of_the_first_one(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are known to live. If the first one stays silent, it has ended."""
    channel, connect = alone
    channel.continues = True
    with connect() as first:
        first.join()
        channel.join()
        with connect() as second:
            second.send(second.hello(second.welcome(), incarnation=8))
            assert "the node already runs at " in second.refusal()
    eventually(lambda: channel.links["b:0"].ended)
    with connect() as second:
        second.send(second.hello(second.welcome(), incarnation=8))
        assert "the node already runs at " in second.refusal()
    assert channel.aborted is None
    monkeypatch.setattr("placer.channel.peers.Peers.is_alive", lambda *_: False)
    with connect() as second:
        second.send(second.hello(second.welcome(), incarnation=8))
        assert second.refusal() == "the process was restarted"


@pytest.mark.parametrize("transport", ["tcp"])
def test_a_second_process_that_no_peer_connects_to_is_named_in_the_hint(
    between: Any, make: Any, addresses: dict[str, str]
) -> None:
    """Nodes connect to those whose names sort before theirs: none connects to this one."""
    channels = between("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))
    other = free_addresses(["c:0"])["c:0"]
    second = make("a:0", addresses, "test job", bind=other, join_timeout=0.2)
    try:
        with pytest.raises(RunError, match="b:0 did not join") as failed:
            second.join()
    finally:
        second.close()
    assert str(failed.value.hint).endswith("If another process of a:0 runs, end it")
    assert all(channel.aborted is None for channel in channels.values())


def test_a_peer_that_has_reset_its_connection_has_no_address() -> None:
    """Its Hello may be read after that, so the address is asked for then."""
    listener = socket.create_server(("127.0.0.1", 0))
    peer = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    framed = FrameSocket(accepted, Arena())
    host, port = peer.getsockname()
    assert framed.peer_address == f"{host}:{port}"
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    assert framed.peer_address == "an unknown address"
    framed.close()
    listener.close()
