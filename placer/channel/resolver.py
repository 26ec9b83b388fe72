"""Looks up the addresses of hosts in a thread, because a lookup may take long."""

from __future__ import annotations

import ipaddress
import socket
import time
from typing import Final

from placer.system.owned_threads import END_LIMIT
from placer.system.worker import Worker

AGE: Final = 1.0
"""Seconds after which a name is looked up again."""
Address = tuple[str, int]
"""An IPv4 or IPv6 address, and a port."""


def is_literal(host: str) -> bool:
    """Return True if a host is an IP address, not a name."""
    address, zone, _ = host.partition("%")
    try:
        return ipaddress.ip_address(address).version == 6 or not zone
    except ValueError:
        return False


def look_up(host: str, port: int) -> list[Address]:
    """Return the addresses of a host; raises OSError if it has none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(str(address[0]), port) for *_, address in found]


class Resolver:
    """Looks up names in a thread, and again after `AGE` seconds.

    Only one thread may call it. `addresses` returns at once: the addresses found last, or
    the reason for having none. It raises an unexpected error of the thread.
    """

    def __init__(self) -> None:
        self._results: dict[str, list[str] | str] = {}
        self._asked: dict[str, float] = {}
        self._requests = Worker(self._look_up, "placer names")

    def addresses(self, host: str, port: int) -> list[Address] | str:
        """Return the addresses of a host, or the reason for having none (yet)."""
        if is_literal(host):
            return [(host, port)]
        self._requests.check()
        now = time.monotonic()
        if now - self._asked.get(host, now - 2 * AGE) > AGE:
            self._asked[host] = now
            if self._requests.offer(host):
                self._requests.start()
        found = self._results.get(host, "the host name is being looked up")
        return found if isinstance(found, str) else [(each, port) for each in found]

    def close(self) -> None:
        """End the thread after its current lookup."""
        self._requests.drop()
        self._requests.join(END_LIMIT)

    def _look_up(self, host: str) -> None:
        try:
            self._results[host] = [each for each, _ in look_up(host, 0)]
        except OSError as error:
            self._results[host] = f"host name not found: {error.strerror}"
        except UnicodeError:
            self._results[host] = "the host name is invalid"
