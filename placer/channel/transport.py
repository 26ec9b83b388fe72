"""The choice of the transport between processes, and the channel over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from placer.channel.endpoint import loopback_endpoint
from placer.channel.protocol import Channel
from placer.channel.shared.region import is_supported
from placer.errors import RunError, did_you_mean

VARIABLE: Final = "PLACER_TRANSPORT"
"""The environment variable that decides where the transport is "auto"."""
TRANSPORTS: Final = ("auto", "shared", "zeromq")


def choose_transport(name: str, endpoints: Mapping[str, str]) -> str:
    """Return the transport to use: "shared" or "zeromq".

    "auto" means the value of `PLACER_TRANSPORT`; without it, shared memory where the
    system supports it and all nodes are on this machine, else ZeroMQ. All nodes of a
    run must choose the same. Raises RunError for another name, and with "auto" for an
    address that is not on this machine.
    """
    subject = f"'{name}'"
    if name == "auto":
        name = os.environ.get(VARIABLE) or name
        subject = f"{VARIABLE} is '{name}', which"
    if name not in TRANSPORTS:
        raise RunError(
            f"{subject} is not a transport", hint=did_you_mean(name, TRANSPORTS)
        )
    if name != "auto":
        return name
    # Both transports refuse addresses that are not loopback.
    for node, address in endpoints.items():
        loopback_endpoint(node, address)
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
    `HOST:PORT`; `job` is the same on all nodes of a run; `transport` is "auto",
    "shared" or "zeromq"; `options` are the keyword arguments that
    `SharedMemoryChannel` and `ZeroMQChannel` have in common.

    Raises RunError where the transport is not available or the node cannot listen.
    """
    if choose_transport(transport, endpoints) == "shared":
        from placer.channel.shared.channel import SharedMemoryChannel

        return SharedMemoryChannel(node, endpoints, job, **options)
    from placer.channel.zeromq.channel import ZeroMQChannel

    return ZeroMQChannel(node, endpoints, job, **options)
