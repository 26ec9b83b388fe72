"""The transports between processes, the choice of one, and the channel over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

from placer.errors import RunError, did_you_mean

if TYPE_CHECKING:  # a command that asks for the names only does without numpy
    from placer.channel.protocol import Channel

VARIABLE: Final = "PLACER_TRANSPORT"
"""The environment variable that decides where the transport is "auto"."""


TRANSPORTS: Final = {
    "shared": "placer.channel.shared.channel:SharedMemoryChannel",
    "tcp": "placer.channel.tcp.channel:TcpChannel",
    "zeromq": "placer.channel.zeromq.channel:ZeroMQChannel",
}
"""The class of the channel over each transport, which is imported when it is used."""
CHOICES: Final = ("auto", *TRANSPORTS)
"""The names that a user may give."""


def choose_transport(name: str) -> str:
    """Return the transport to use, a key of `TRANSPORTS`.

    "auto" means the value of `PLACER_TRANSPORT`; without it, shared memory where the
    system supports it, else ZeroMQ. All nodes of a run must choose the same. Raises
    RunError for another name.
    """
    subject = f"'{name}'"
    if name == "auto":
        name = os.environ.get(VARIABLE) or name
        subject = f"{VARIABLE} is '{name}', which"
    if name not in CHOICES:
        raise RunError(
            f"{subject} is not a transport", hint=did_you_mean(name, CHOICES)
        )
    if name != "auto":
        return name
    from placer.channel.shared.region import is_supported

    return "shared" if is_supported() else "zeromq"


def open_channel(
    node: str,
    endpoints: Mapping[str, str],
    job: str,
    *,
    transport: str = "auto",
    **options: Any,
) -> Channel:
    """Open the channel of `node`, which is a process of its own.

    Call `join` before the first message. `endpoints` maps every node of the run to its
    `HOST:PORT`; `job` is the same on all nodes of a run; `transport` is one of
    `CHOICES`; `options` are the keyword arguments of `session.Session`.

    Raises RunError where the transport is not available or the node cannot listen.
    """
    channel_class = resolve_name(TRANSPORTS[choose_transport(transport)])
    channel: Channel = channel_class(node, endpoints, job, **options)
    return channel
