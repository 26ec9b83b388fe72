"""Free ports for the nodes of a run on this machine."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from placer.errors import RunError

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST = 10_000
_LAST = 65_535


def free_endpoints(nodes: Sequence[str]) -> dict[str, str]:
    """Choose a loopback address with a free port for each node.

    The ports are outside the range of ephemeral ports, from which the system chooses
    the local port of an outgoing connection. Otherwise a node that connects before its
    peer listens could get the peer's port. Raises RunError if there are too few free
    ports.
    """
    candidates = _candidates()
    # Random, so that two runs that start at the same time try different ports.
    start = random.SystemRandom().randrange(len(candidates))
    ports: list[int] = []
    with ExitStack() as sockets:
        for port in [*candidates[start:], *candidates[:start]]:
            if len(ports) == len(nodes):
                break
            probe = sockets.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                probe.close()
                continue
            ports.append(port)
    if len(ports) < len(nodes):
        raise RunError(
            f"{len(nodes)} nodes need a port each, but only {len(ports)} are free",
            hint="choose other ports with --base-port, or run fewer nodes",
        )
    return {node: f"127.0.0.1:{port}" for node, port in zip(nodes, ports, strict=True)}


def _candidates() -> list[int]:
    try:
        low, high = map(int, _RANGE.read_text().split())
    except OSError:  # not Linux: the range of ephemeral ports of IANA
        low, high = 49_152, _LAST
    outside = [*range(_LEAST, low), *range(high + 1, _LAST + 1)]
    return outside or list(range(low, high + 1))
