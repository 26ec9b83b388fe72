"""A second process of a node, started by mistake, is refused and does no harm."""

from __future__ import annotations

import socket
import struct
from typing import Any

import numpy as np
import pytest
from support.free_addresses import free_addresses

from placer.channel.frame_socket import FrameSocket
from placer.channel.interface import Aborted, Key
from placer.channel.session import Session
from placer.errors import RunError
from placer.system.memory.arena import Arena


@pytest.mark.parametrize("transport", ["tcp", "tls"])
def test_a_second_process_is_refused_while_the_first_one_is_heard(
    between: Any, make: Any, addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both addresses are named, and the run goes on."""
    seen = dict.fromkeys(addresses, addresses)
    channels = between("a:0", "b:0", addresses=seen, deadline=20.0)
    other = free_addresses(["c:0"])["c:0"]
    monkeypatch.setattr("placer.channel.admission.SECOND_WAIT", 0.0)
    second: Session = make("b:0", addresses, "test job", bind=other, join_timeout=20)
    try:
        with pytest.raises(Aborted) as refused:
            second.join()
    finally:
        second.close()
    text = str(refused.value)
    assert text.startswith("b:0: the node already runs at 127.0.0.1:")
    assert "; the second process is at 127.0.0.1:" in text
    assert text.endswith("end one of them")
    for step in (1, 2):
        channels["b:0"].send("a:0", Key(1, step), [np.arange(3)])
        (got,) = channels["a:0"].receive("b:0", Key(1, step))
        assert got.tolist() == [0, 1, 2]
    assert channels["a:0"].aborted is None
    assert channels["b:0"].aborted is None


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
