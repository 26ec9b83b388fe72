"""Which carrier a node between processes uses, and the channel over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from placer.channel.endpoint import loopback
from placer.channel.protocol import Channel
from placer.channel.shared.region import supported
from placer.errors import RunError, did_you_mean

VARIABLE: Final = "PLACER_CARRIER"
"""The environment variable that is asked where the carrier is "auto"."""
CARRIERS: Final = ("auto", "shared", "zeromq")


def choose(carrier: str, endpoints: Mapping[str, str]) -> str:
    """The carrier's name: "shared" or "zeromq".

    "auto" is what `PLACER_CARRIER` says; without it shared memory where the system has
    it and all nodes are on this machine, else ZeroMQ. All nodes of a run must come to
    the same. RunError for another name.
    """
    said = f"carrier '{carrier}'"
    if carrier == "auto":
        carrier = os.environ.get(VARIABLE) or carrier
        said = f"{VARIABLE} is '{carrier}', which"
    if carrier not in CARRIERS:
        raise RunError(f"{said} is no carrier", hint=did_you_mean(carrier, CARRIERS))
    if carrier != "auto":
        return carrier
    # Addresses beyond this machine are an error for both.
    for node, address in endpoints.items():
        loopback(node, address)
    return "shared" if supported() else "zeromq"


def open_channel(
    node: str,
    endpoints: Mapping[str, str],
    job: str,
    *,
    carrier: str = "auto",
    **options: Any,
) -> Channel:
    """The channel of a node that is a process; it has still to join its peers.

    `options` are those that both carriers have. RunError where the carrier cannot be
    had or the node cannot listen.
    """
    if choose(carrier, endpoints) == "shared":
        from placer.channel.shared.channel import SharedMemoryChannel

        return SharedMemoryChannel(node, endpoints, job, **options)
    from placer.channel.zeromq.channel import ZeroMQChannel

    return ZeroMQChannel(node, endpoints, job, **options)
