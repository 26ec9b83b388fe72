"""Addresses of nodes: `HOST:PORT`, on the loopback interface only."""

from __future__ import annotations

import errno
import ipaddress
from typing import TYPE_CHECKING

from placer.errors import RunError

if TYPE_CHECKING:
    from zmq import ZMQError


def listen_error(node: str, address: str, error: OSError | ZMQError) -> RunError:
    """Return the error of a node that cannot listen at its address."""
    where = f"{node} cannot listen at {address}"
    if error.errno != errno.EADDRINUSE:
        return RunError(f"{where}: {error}")
    return RunError(
        f"{where}: the port is in use",
        hint="another run may still be going; end it or choose another port",
    )


def loopback_endpoint(node: str, address: str) -> str:
    """Return the ZeroMQ endpoint of `address`, which is `HOST:PORT`.

    Raises RunError, which names `node`, for a malformed address, and for hosts other
    than localhost, ::1 and 127.0.0.0/8: between machines a channel would need
    authentication and encryption, which it does not have.

    >>> loopback_endpoint("worker:0", "localhost:4321")
    'tcp://127.0.0.1:4321'
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal():
        raise RunError(f"{node}: '{address}' is not an address; write HOST:PORT")
    if not 0 < int(port) < 65536:
        raise RunError(f"{node}: '{address}' has no port from 1 to 65535")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if bare == "localhost":
        bare = "127.0.0.1"
    try:
        ip = ipaddress.ip_address(bare)
    except ValueError:
        ip = None
    if ip is None or not ip.is_loopback:
        raise RunError(
            f"{node}: addresses beyond loopback are refused: '{address}'",
            hint="write 127.0.0.1:PORT, [::1]:PORT or localhost:PORT",
        )
    return f"tcp://[{ip}]:{port}" if ip.version == 6 else f"tcp://{ip}:{port}"
