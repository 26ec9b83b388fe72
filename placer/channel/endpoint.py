"""Addresses of nodes: `HOST:PORT`."""

from __future__ import annotations

import ipaddress

from placer.errors import RunError

Endpoint = tuple[str, int]
"""A host name or IP address, and a port."""


def parse_endpoint(node: str, address: str) -> Endpoint:
    """Return the host and port of `address`, which is `HOST:PORT`.

    Raises RunError, which names `node`, for a malformed address.

    >>> parse_endpoint("worker:0", "[fd00::2]:4321")
    ('fd00::2', 4321)
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal():
        raise RunError(f"{node}: '{address}' is not an address; write HOST:PORT")
    if not 0 < int(port) < 65536:
        raise RunError(f"{node}: '{address}' has no port from 1 to 65535")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or bare.startswith("-") or any(c.isspace() for c in bare):
        raise RunError(f"{node}: '{address}' is not an address; write HOST:PORT")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Return True for a loopback address or the name localhost."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def show_endpoint(endpoint: Endpoint) -> str:
    """Return `HOST:PORT`, with brackets around an IPv6 address."""
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
