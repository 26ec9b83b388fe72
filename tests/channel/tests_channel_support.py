"""Free ports and waiting for a state, shared by the channel tests."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence


def free_addresses(nodes: Sequence[str]) -> dict[str, str]:
    """A free loopback port for each node, all chosen before any is let go."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in nodes]
    addresses = {
        node: f"127.0.0.1:{listener.getsockname()[1]}"
        for node, listener in zip(nodes, listeners, strict=True)
    }
    for listener in listeners:
        listener.close()
    return addresses


def eventually(happened: Callable[[], bool], within: float = 10.0) -> None:
    """Fail unless `happened` becomes true; for states that have no event to await."""
    limit = time.monotonic() + within
    never = threading.Event()
    while not happened():
        assert time.monotonic() < limit, "it never happened"
        never.wait(0.002)
