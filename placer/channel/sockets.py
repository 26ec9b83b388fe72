"""The sockets between nodes: unix sockets on one machine, TCP between any machines.

A node listens at an abstract unix address, which has no file. The address is computed from the
job, the node and its port. Only processes in the same network namespace find it, so connecting
shows which peers can share memory.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import struct
from typing import Final
from weakref import WeakSet

from placer.channel.endpoint import Endpoint, show_endpoint
from placer.channel.resolver import Address, look_up
from placer.errors import RunError

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
BACKLOG: Final = 1024
"""The largest number of connections that wait to be accepted."""
_OWN: Final[WeakSet[socket.socket]] = WeakSet()
"""The sockets of this process. A fork, such as a process of a pool that reads rows, must not keep
an address or a connection open."""


def _close_in_fork() -> None:
    for each in _OWN:
        each.close()


os.register_at_fork(after_in_child=_close_in_fork)


def listen_unix(node: str, job: str, where: Endpoint) -> socket.socket:
    """Listen for processes of this machine. Raises RunError if another process already
    listens as this node."""
    return _listen(_unix_socket(), unix_address(job, node, where[1]), node, where)


def listen_tcp(node: str, where: Endpoint) -> socket.socket:
    """Listen at an address of this machine. Raises RunError if that is impossible."""
    try:
        address = look_up(*where)[0]
        listener = _tcp_socket(address)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "invalid host name"
        raise RunError(
            f"{node} cannot listen at {show_endpoint(where)}: {why}",
            hint="set the address to listen at with --bind",
        ) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return _listen(listener, address, node, where)


def connect_unix(
    job: str, peer: str, where: Endpoint
) -> tuple[socket.socket | None, bool]:
    """Connect to a peer on this machine.

    Returns:
        The connection, None if it failed; and whether the peer exists but has no room for
        another connection now.
    """
    try:
        connection = _unix_socket()
    except OSError as why:
        raise_if_exhausted(why)
        raise
    error = connection.connect_ex(unix_address(job, peer, where[1]))
    if not error and is_same_user(connection):
        return connection, False
    connection.close()
    return None, error == errno.EAGAIN


def connect_tcp(address: Address) -> socket.socket | str:
    """Start connecting to an address. Returns the socket, or the reason for an
    immediate failure. The socket becomes writable when the attempt has succeeded or
    failed."""
    try:
        connection = _tcp_socket(address)
    except OSError as why:  # the system does not support this kind of address
        raise_if_exhausted(why)
        return os.strerror(why.errno or 0).lower()
    try:
        error = connection.connect_ex(address)
    except OSError as why:  # such as an unknown zone
        connection.close()
        return (why.strerror or str(why)).lower()
    if error in (0, errno.EINPROGRESS):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    connection.close()
    return os.strerror(error).lower()


def accept(listener: socket.socket) -> socket.socket | None:
    """Accept a connection; None if none waits or the other side is another user. Raises
    RunError if this process has no free file descriptor."""
    try:
        connection, _ = listener.accept()
    except OSError as error:
        raise_if_exhausted(error)
        return None  # the other side has already closed it
    connection.setblocking(False)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    elif not is_same_user(connection):
        connection.close()
        return None
    _OWN.add(connection)
    return connection


def raise_if_exhausted(error: OSError) -> None:
    """Raise RunError if the error is a lack of file descriptors."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise RunError(
            f"a peer cannot connect: {os.strerror(error.errno).lower()}",
            hint="raise the limit of open files, for example with `ulimit -n 20000`",
        ) from None


def unix_address(job: str, node: str, port: int) -> bytes:
    """Return the abstract unix address of a node. A process that does not know the name
    of the job cannot guess it."""
    text = "\0".join((job, node, str(port)))
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return f"\0placer/{os.geteuid()}/{digest}".encode()


def is_same_user(connection: socket.socket) -> bool:
    """Return True if the other end of a unix socket is a process of the same user."""
    size = _CREDENTIALS.size
    option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return bool(_CREDENTIALS.unpack(option)[1] == os.geteuid())


def _listen(
    listener: socket.socket, address: bytes | Address, node: str, where: Endpoint
) -> socket.socket:
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        what = f"{node} cannot listen at {show_endpoint(where)}"
        if error.errno == errno.EADDRNOTAVAIL:
            raise RunError(
                f"{what}: this machine does not have the address",
                hint="set the address to listen at with --bind",
            ) from None
        if error.errno != errno.EADDRINUSE:
            raise RunError(f"{what}: {error.strerror}") from None
        raise RunError(
            f"{what}: the port is in use",
            hint=f"{node} may already run, or another run uses the port: end it, or choose"
            " another port",
        ) from None
    return listener


def _unix_socket() -> socket.socket:
    return _made(socket.AF_UNIX)


def _tcp_socket(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return _made(family)


def _made(family: int) -> socket.socket:
    result = socket.socket(family, socket.SOCK_STREAM)
    result.setblocking(False)
    _OWN.add(result)
    return result
