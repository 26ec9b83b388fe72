"""Addresses of nodes."""

from __future__ import annotations

import pytest

from placer.channel.endpoint import is_loopback, parse_endpoint, show_endpoint
from placer.errors import RunError


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("127.0.0.1:4321", ("127.0.0.1", 4321)),
        ("localhost:65535", ("localhost", 65535)),
        ("[fd00::2]:1", ("fd00::2", 1)),
        ("fd00::2:4321", ("fd00::2", 4321)),
        ("host-c.example.org:4321", ("host-c.example.org", 4321)),
    ],
)
def test_addresses_are_a_host_and_a_port(address, endpoint):
    assert parse_endpoint("worker:0", address) == endpoint
    assert parse_endpoint("worker:0", show_endpoint(endpoint)) == endpoint


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", ":4321", "-oProxy=x:1", "a b:1"],
)
def test_malformed_address_is_an_error(address):
    with pytest.raises(RunError, match=r"worker:0: .* is not an address; write HOST:"):
        parse_endpoint("worker:0", address)


@pytest.mark.parametrize("port", ["0", "65536", "99999999"])
def test_ports_out_of_range_are_an_error(port):
    with pytest.raises(RunError, match="no port from 1 to 65535"):
        parse_endpoint("worker:0", f"127.0.0.1:{port}")


def test_loopback_is_known_by_address_or_name():
    assert all(map(is_loopback, ["127.0.0.1", "127.8.9.1", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "10.0.0.1", "fd00::2", "host-c"]))
