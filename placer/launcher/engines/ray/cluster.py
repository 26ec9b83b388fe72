"""The connection to a Ray cluster and its head."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from placer.channel.endpoint import parse_endpoint
from placer.errors import RunError
from placer.launcher.engines.said import quoting

CONNECT_TIMEOUT: Final = 10.0
"""Seconds in which the cluster must accept a connection."""
ANSWER_TIMEOUT: Final = 60.0
"""Seconds in which the cluster must answer. Ray itself retries without a limit."""
HEAD_POLL: Final = 2.0
"""Seconds between two checks of the cluster's head."""
HEAD_TIMEOUT: Final = 2.0
"""Seconds in which the head must accept a connection."""


def connect(ray: Any, address: str, give_up: Callable[[RunError], None]) -> None:
    """Connect this process to a cluster.

    Args:
        ray: the package.
        address: the address of the cluster.
        give_up: called in a thread with an error if a cluster accepts a connection and
            then does not answer. It ends this process.

    Raises:
        RunError: if no cluster is found, or its version of Ray or Python differs.
    """
    given = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    _check_reachable(given)
    silence = RunError(
        f"'{given or address}' has not answered as a Ray cluster for"
        f" {ANSWER_TIMEOUT:g} s",
        hint="`ray start --head` prints the address of a cluster",
    )
    timer = threading.Timer(ANSWER_TIMEOUT, give_up, [silence])
    timer.daemon, timer.name = True, "placer silence"
    timer.start()
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        message = f"cannot connect to the Ray cluster '{given or address}'"
        hint = (
            "check with `ray status` that this machine belongs to a cluster, or "
            "name another cluster with --option address=HOST:PORT"
        )
        # Such an error contains both versions.
        is_found = "Version mismatch" in str(error)
        raise RunError(
            quoting(message, str(error)), hint=None if is_found else hint
        ) from None
    finally:
        timer.cancel()
        timer.join()


def _check_reachable(address: str) -> None:
    """Raise RunError if nothing listens at HOST:PORT. Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return  # Ray checks `auto` and other forms of addresses.
    if why := _refusal(address, CONNECT_TIMEOUT):
        raise RunError(
            f"no Ray cluster answers at {address}: {why}",
            hint="`ray start --head` prints the address of a cluster",
        )


class Head:
    """The head of the cluster to which this process is connected.

    Without the head, Ray does not notice changes of the cluster, and ends its processes
    after a while.

    Attributes:
        address: the address of the head.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        # A client of Ray Client may be unable to reach the head.
        self._can_be_seen = not _refusal(address, HEAD_TIMEOUT)
        self._next_look = time.monotonic() + HEAD_POLL
        self._is_told = False

    def problem(self) -> str:
        """Return the reason why the head cannot be reached, or ""."""
        if not self._can_be_seen or not (why := _refusal(self.address, HEAD_TIMEOUT)):
            return ""
        return f"the head of the Ray cluster, {self.address}, does not answer: {why}"

    def look(self) -> str:
        """Return a message if the head was lost or is back since the last check. It
        checks only every `HEAD_POLL` seconds."""
        if time.monotonic() < self._next_look:
            return ""
        problem = self.problem()
        self._next_look = time.monotonic() + HEAD_POLL
        if bool(problem) == self._is_told:
            return ""
        self._is_told = bool(problem)
        if problem:
            return f"{problem}; if this lasts, Ray ends the job, by default after 60 s"
        return f"the head of the Ray cluster, {self.address}, answers again"


def explain(error: Exception, head: Head) -> str:
    """Return the text of an error of Ray, and whether the head may be its cause."""
    return f"{error}\n{head.problem()}"


def _refusal(address: str, timeout: float) -> str:
    try:
        socket.create_connection(parse_endpoint("Ray", address), timeout).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
