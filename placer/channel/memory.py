"""Channels between nodes that are threads of one process.

Arrays are passed without a copy: a receiver gets read-only views of the sender's own
arrays, so the sender must not change them while they are in use. With `out` they are
copied. Flow control, deadlines and ends are those of every channel. There are no
threads here: `send` delivers into the mailbox of the receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from placer.channel import payload
from placer.channel.cause import Cause
from placer.channel.message import whole_message
from placer.channel.protocol import Channel
from placer.channel.types import Array, Key


def memory_channels(nodes: Iterable[str], **limits: Any) -> dict[str, MemoryChannel]:
    """Return the channel of each node of a run inside one process.

    `limits` are the keyword arguments of `protocol.Channel`.
    """
    names = tuple(nodes)
    channels: dict[str, MemoryChannel] = {}
    for node in names:
        peers = [name for name in names if name != node]
        channels[node] = MemoryChannel(channels, node, peers, **limits)
    return channels


class MemoryChannel(Channel):
    """The channel of one node; `channels` are those of all nodes of the process."""

    def __init__(
        self,
        channels: Mapping[str, MemoryChannel],
        node: str,
        peers: Sequence[str],
        **limits: Any,
    ) -> None:
        super().__init__(node, peers, **limits)
        self._channels = channels

    def join(self) -> None:
        """Return at once: the nodes of one process exist from the start."""

    def abort(self, cause: Cause) -> None:
        """End the run on every node; only the first cause counts."""
        if not self.mailbox.abort(cause):
            return
        for other in self._others():
            if other.mailbox.abort(cause) and other.on_abort is not None:
                other.on_abort(cause)

    def close(self) -> None:
        """End this node's part and mark it as departed in the other mailboxes."""
        if self._closed:
            return
        self._closed = True
        self.mailbox.close()
        for other in self._others():
            other.mailbox.mark_departed(self.node)

    def _transmit(
        self, to: str, key: Key, arrays: list[Array], what: Callable[[], str]
    ) -> None:
        """Pass read-only views of `arrays` to node `to`."""
        views = []
        for array in arrays:
            view = array.view()
            view.flags.writeable = False
            views.append(view)
        message = whole_message(self.node, key, views)
        payload.check_size(message.nbytes, self._max_message, what)
        self.mailbox.reserve(to, key, message.nbytes, message.cost)
        self._channels[to].mailbox.deliver(message)

    def _on_credit(self, source: str, total: int) -> None:
        self._channels[source].mailbox.update_credit(self.node, total)

    def _others(self) -> list[MemoryChannel]:
        return [self._channels[peer] for peer in self.mailbox.peers]
