"""Ports for a run are free, distinct, and outside the ephemeral range."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from placer.channel import ports
from placer.channel.ports import free_endpoints
from placer.errors import RunError

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_each_node_gets_a_port_that_can_be_bound() -> None:
    endpoints = free_endpoints([f"worker:{i}" for i in range(20)])
    assert len(set(endpoints.values())) == 20
    with ExitStack() as sockets:
        for address in endpoints.values():
            host, port = address.split(":")
            sockets.enter_context(socket.socket()).bind((host, int(port)))


def test_a_port_in_use_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    (address,) = free_endpoints(["worker:0"]).values()
    used = int(address.split(":")[1])
    monkeypatch.setattr(ports, "_candidates", lambda least: [used, used + 1])
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", used))
        assert free_endpoints(["worker:0"]) == {"worker:0": f"127.0.0.1:{used + 1}"}
        with pytest.raises(
            RunError, match="2 nodes need a port each, but only 1 are free"
        ):
            free_endpoints(["worker:0", "ps:0"])


@pytest.mark.skipif(
    not RANGE.exists(), reason="needs the range of ephemeral ports of Linux"
)
def test_ephemeral_ports_are_not_used() -> None:
    low, high = map(int, RANGE.read_text().split())
    for address in free_endpoints([f"ps:{i}" for i in range(50)]).values():
        assert not low <= int(address.split(":")[1]) <= high
