"""Messages between a launcher and its fork server: JSON after its length, with
descriptors attached."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

_LENGTH: Final = struct.Struct("!I")
_MOST: Final = 32
"""The largest number of descriptors in a message."""


def send(
    connection: socket.socket,
    message: Mapping[str, Any],
    descriptors: Sequence[int] = (),
) -> None:
    """Send a message. Raises OSError."""
    data = json.dumps(message).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(data))], descriptors)
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next message and its descriptors, which child programs do not inherit.

    Raises:
        EOFError: at the end of the connection.
        OSError: if the connection is broken.
    """
    size = _MOST * array.array("i").itemsize
    head, ancillary, _, _ = connection.recvmsg(
        _LENGTH.size, socket.CMSG_LEN(size), socket.MSG_CMSG_CLOEXEC
    )
    received = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    try:
        head += _read(connection, _LENGTH.size - len(head))
        (length,) = _LENGTH.unpack(head)
        message = json.loads(_read(connection, length))
    except BaseException:
        for descriptor in received:
            with suppress(OSError):
                os.close(descriptor)
        raise
    return message, list(received)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
