"""Ends the earlier process of a node on its machine, when a launcher starts the node again.

A machine may have lost its connection to the launcher, and may still run the node. The earlier
process would hold the port of the node. So the parent of each node listens on an abstract unix
socket, whose name has the id of the run and the node. A newcomer connects to it. The earlier
parent then kills its node and ends. If the parent is stuck, the newcomer kills it.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from placer.errors import RunError
from placer.system.descriptors import is_readable

GRACE: Final = 5.0
"""Seconds in which an earlier process must end on its own. Then it is killed."""
LIMIT: Final = 15.0
"""Seconds after which a node cannot be started, because the earlier process has not ended."""
PAUSE: Final = 0.02
"""Seconds between two attempts to take a place that is being left."""
_CREDENTIALS: Final = struct.Struct("3i")
"""The process, user and group of a peer: `struct ucred` of unix(7)."""


def take_place(run: str, node: str) -> socket.socket:
    """End the earlier process of a node of a run on this machine, if there is one.

    Returns:
        A socket that becomes readable when a newcomer wants the place (see `newcomer`).

    Raises:
        RunError: if the earlier process does not end, or belongs to another user.
    """
    name = f"\0placer {run} {node}"
    until = time.monotonic() + LIMIT
    while True:
        place = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            place.bind(name)
            place.listen()
        except OSError as error:
            place.close()
            if error.errno != errno.EADDRINUSE:
                raise RunError(f"{node} cannot take its place: {error}") from error
        else:
            return place
        earlier = _end_earlier(name, node)
        if time.monotonic() > until:
            raise RunError(
                f"{node}: an earlier process of this run{earlier} has not ended within"
                f" {LIMIT:g} s",
                hint="it may wait for a disk that does not answer: end it, or restart"
                " its machine",
            )
        time.sleep(PAUSE)


def newcomer(place: socket.socket) -> socket.socket | None:
    """Return the connection of a newcomer of the same user, if a place is readable. The
    process keeps the connection until it ends, which is how the newcomer notices its end."""
    try:
        connection, _ = place.accept()
    except OSError:  # the newcomer has ended
        return None
    if _peer(connection)[1] == os.getuid():
        return connection
    connection.close()
    return None


def _end_earlier(name: str, node: str) -> str:
    """End the process that listens at a name, and its node. Return how to name it."""
    with (
        ExitStack() as exits,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
    ):
        try:
            connection.connect(name)
            number, user = _peer(connection)
            if user != os.getuid():
                raise RunError(
                    f"{node}: process {number} of another user has the name of this run"
                )
            process = os.pidfd_open(number)
        except OSError:  # it has just ended
            return ""
        exits.callback(os.close, process)
        if is_readable(connection.fileno(), 0.0):
            return ""  # it has ended, and the number may be that of another process
        running = [process, *_open_children(number, exits)]
        _send(process, signal.SIGCONT)  # otherwise a stopped process reads nothing
        if not is_readable(process, GRACE):
            for each in running:
                _send(each, signal.SIGKILL)
        for each in running:
            is_readable(each, GRACE)
    return f" (process {number})"


def _open_children(number: int, exits: ExitStack) -> list[int]:
    """Return a descriptor of each child of a process."""
    found = []
    with suppress(OSError):
        listed = Path(f"/proc/{number}/task/{number}/children").read_text()
        for child in listed.split():
            found.append(os.pidfd_open(int(child)))
            exits.callback(os.close, found[-1])
    return found


def _send(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, number)


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end of a connection."""
    size = _CREDENTIALS.size
    given = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    process, user, _ = _CREDENTIALS.unpack(given)
    return process, user
