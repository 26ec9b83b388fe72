"""The transports between processes, the choice of one, and the channel over it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from placer.channel.endpoint import is_loopback, parse_endpoint
from placer.errors import RunError, did_you_mean

if TYPE_CHECKING:  # a command that asks for the names only does without numpy
    from placer.channel.session import Session

VARIABLE: Final = "PLACER_TRANSPORT"
"""The environment variable that decides where the transport is "auto"."""


STREAMS: Final = {"auto": ("unix", "tcp"), "shared": ("unix",), "tcp": ("tcp",)}
"""How nodes may be connected over each transport."""
CHOICES: Final = tuple(STREAMS)
"""The names that a user may give."""


def choose_transport(name: str) -> str:
    """Return the transport to use, one of `CHOICES`.

    "auto" means the value of `PLACER_TRANSPORT`; without it, for each pair of nodes
    shared memory if they are on one machine, else TCP. Raises RunError for another
    name.
    """
    subject = f"'{name}'"
    if name == "auto":
        name = os.environ.get(VARIABLE) or name
        subject = f"{VARIABLE} is '{name}', which"
    if name not in CHOICES:
        raise RunError(
            f"{subject} is not a transport", hint=did_you_mean(name, CHOICES)
        )
    return name


def choose_streams(transport: str, endpoints: Mapping[str, str]) -> tuple[str, ...]:
    """Return the streams of a run: with "auto", nodes that are all on this machine need
    no TCP. Raises RunError for another transport or address than there is."""
    streams = STREAMS[choose_transport(transport)]
    hosts = [parse_endpoint(name, text)[0] for name, text in endpoints.items()]
    if not hasattr(socket, "AF_UNIX") or sys.platform != "linux":
        return ("tcp",)
    if len(streams) > 1 and all(map(is_loopback, hosts)):
        return ("unix",)
    return streams


def open_channel(
    node: str,
    endpoints: Mapping[str, str],
    job: str,
    *,
    transport: str = "auto",
    **options: Any,
) -> Session:
    """Open the channel of `node`, which is a process of its own.

    Call `join` before the first message. `endpoints` maps every node of the run to its
    `HOST:PORT`; `job` is the same on all nodes of a run; `transport` is one of
    `CHOICES`; `options` are the keyword arguments of `session.Session`.

    Raises RunError where the transport is not available or the node cannot listen.
    """
    from placer.channel.session import Session

    streams = choose_streams(transport, endpoints)
    return Session(node, endpoints, job, streams=streams, **options)
