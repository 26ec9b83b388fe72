"""Sends file contents as messages, for nodes without access to the control node's folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from placer.channel.interface import Channel, Key
from placer.checkpoint.writing import cut
from placer.errors import RunError

MAX_PART: Final = 64 << 20
"""The largest number of bytes in one message."""


def send_parts(
    channel: Channel, to: str, key: Key, pieces: Iterable[memoryview]
) -> None:
    """Send bytes to a node, in messages of up to `MAX_PART` bytes.

    The buffers must not change until the receiver has received everything.
    """
    for piece in pieces:
        for part in cut(piece, MAX_PART):
            channel.send(to, key, [np.frombuffer(part, np.uint8)])


def receive_parts(
    channel: Channel, source: str, key: Key, nbytes: int
) -> Iterator[memoryview]:
    """Yield the bytes that a node sends with `send_parts`, `nbytes` in total."""
    while nbytes > 0:
        (part,) = channel.receive(source, key)
        if part.dtype != np.uint8 or not 0 < part.size <= nbytes:
            raise RunError(
                f"{source} sent a message that this version of placer does not know",
                hint="run the same version of placer on every node",
            )
        nbytes -= part.size
        yield part.data
