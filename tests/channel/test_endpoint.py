"""Addresses of nodes: only loopback is accepted."""

from __future__ import annotations

import pytest

from placer.channel.endpoint import loopback_endpoint
from placer.errors import RunError


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("127.0.0.1:4321", "tcp://127.0.0.1:4321"),
        ("127.8.9.1:1", "tcp://127.8.9.1:1"),
        ("localhost:65535", "tcp://127.0.0.1:65535"),
        ("[::1]:4321", "tcp://[::1]:4321"),
        ("::1:4321", "tcp://[::1]:4321"),
    ],
)
def test_loopback_addresses_become_endpoints(address, endpoint):
    assert loopback_endpoint("worker:0", address) == endpoint


@pytest.mark.parametrize(
    "address", ["0.0.0.0:1", "192.168.0.1:1", "[::]:1", "example.org:1", "*:1", ":1"]
)
def test_addresses_outside_loopback_are_refused(address):
    with pytest.raises(
        RunError, match=r"worker:0: addresses beyond loopback are refused"
    ):
        loopback_endpoint("worker:0", address)


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x"])
def test_malformed_address_is_an_error(address):
    with pytest.raises(RunError, match="is not an address; write HOST:PORT"):
        loopback_endpoint("worker:0", address)


@pytest.mark.parametrize("port", ["0", "65536", "99999999"])
def test_ports_out_of_range_are_an_error(port):
    with pytest.raises(RunError, match="no port from 1 to 65535"):
        loopback_endpoint("worker:0", f"127.0.0.1:{port}")
