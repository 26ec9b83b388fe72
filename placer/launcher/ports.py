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
    """A loopback address for each node, on ports that nobody listens on now.

    They lie outside the range from which the system takes the near ends of outgoing
    connections: inside it, a node that connects before its peer listens could be given
    the peer's own port. RunError when too few are free.
    """
    candidates = _candidates()
    # The system's randomness: two runs that start together try different ports.
    start = random.SystemRandom().randrange(len(candidates))
    found: list[int] = []
    with ExitStack() as held:
        for port in [*candidates[start:], *candidates[:start]]:
            if len(found) == len(nodes):
                break
            probe = held.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                probe.close()
                continue
            found.append(port)
    if len(found) < len(nodes):
        raise RunError(
            f"this machine has {len(found)} free ports and {len(nodes)} nodes need one",
            hint="name others with --base-port, or run with fewer nodes",
        )
    return {node: f"127.0.0.1:{port}" for node, port in zip(nodes, found, strict=True)}


def _candidates() -> list[int]:
    try:
        low, high = map(int, _RANGE.read_text().split())
    except OSError:  # not Linux: the range that IANA gives to outgoing connections
        low, high = 49_152, _LAST
    outside = [*range(_LEAST, low), *range(high + 1, _LAST + 1)]
    return outside or list(range(low, high + 1))
