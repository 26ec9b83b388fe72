"""Finds free ports on this machine for the nodes of a run."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from placer.errors import RunError

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST = 10_000
_LAST = 65_535


def free_endpoints(nodes: Sequence[str]) -> dict[str, str]:
    """Choose a loopback address with a free port for each node.

    The ports are outside the range of ephemeral ports, from which the system chooses local
    ports of outgoing connections. Otherwise an outgoing connection could take the port of a
    node that does not listen yet.

    Raises RunError if too few ports are free.
    """
    free = free_ports("127.0.0.1")
    with ExitStack() as exits:
        bound = [exits.enter_context(each) for each in islice(free, len(nodes))]
        ports = [each.getsockname()[1] for each in bound]
    if len(ports) < len(nodes):
        raise RunError(
            f"{len(nodes)} nodes need a port each, but only {len(ports)} are free",
            hint="choose other ports with --base-port, or run fewer nodes",
        )
    return {node: f"127.0.0.1:{port}" for node, port in zip(nodes, ports, strict=True)}


def free_ports(host: str, least: int = _LEAST) -> Iterator[socket.socket]:
    """Yield sockets bound to free ports of a local address, from port `least` on.
    Ephemeral ports are skipped. A socket holds its port until it is closed."""
    candidates = _candidates(least)
    # Start at a random port, so that two runs that start at the same time try different ports.
    start = random.SystemRandom().randrange(len(candidates))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in [*candidates[start:], *candidates[:start]]:
        bound = socket.socket(family)
        try:
            bound.bind((host, port))
        except OSError:
            bound.close()
            continue
        yield bound


def _candidates(least: int) -> list[int]:
    try:
        low, high = map(int, _RANGE.read_text().split())
    except OSError:  # not Linux: use the ephemeral ports of IANA
        low, high = 49_152, _LAST
    outside = [*range(least, low), *range(high + 1, _LAST + 1)]
    return outside or list(range(low, high + 1))
