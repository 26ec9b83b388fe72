"""The transports between processes, and the choice of one."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Final

from placer.channel.endpoint import is_loopback, parse_endpoint
from placer.errors import RunError, did_you_mean

VARIABLE: Final = "PLACER_TRANSPORT"
"""The environment variable that sets the transport if it is "auto"."""


STREAMS: Final = {"auto": ("unix", "tcp"), "shared": ("unix",), "tcp": ("tcp",)}
"""The streams that each transport may use."""
CHOICES: Final = tuple(STREAMS)
"""The names that a user may choose."""


def choose_transport(name: str) -> str:
    """Return the transport to use, one of `CHOICES`. "auto" means the value of
    `PLACER_TRANSPORT`. Without this variable, nodes on one machine use shared memory,
    and other pairs use TCP. Raises RunError for an unknown name."""
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
    """Return the streams of a run. With "auto", nodes that are all on this machine do
    not use TCP. Raises RunError for an unknown transport or a malformed address."""
    streams = STREAMS[choose_transport(transport)]
    hosts = [parse_endpoint(name, text)[0] for name, text in endpoints.items()]
    if not hasattr(socket, "AF_UNIX") or sys.platform != "linux":
        return ("tcp",)
    if len(streams) > 1 and all(map(is_loopback, hosts)):
        return ("unix",)
    return streams
