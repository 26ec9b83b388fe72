"""Channels between nodes that are threads of one process.

Arrays are passed without a copy: a receiver gets read-only views of the sender's own
arrays, so the sender must not change them while they are in use. With `out` they are
copied. Flow control, deadlines and ends are those of every channel. There are no
threads here: `send` delivers into the mailbox of the receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from placer.channel import payload
from placer.channel.message import whole_message
from placer.channel.protocol import Channel
from placer.channel.types import Array, Cause, Key
from placer.errors import RunError, did_you_mean


class MemoryHub:
    """The channels of all nodes of a run inside one process.

    `limits` are the keyword arguments of `protocol.Channel`.
    """

    def __init__(self, nodes: Iterable[str], **limits: Any) -> None:
        names = tuple(nodes)
        self.channels = {
            node: MemoryChannel(self, node, names, **limits) for node in names
        }

    def channel(self, node: str) -> MemoryChannel:
        """Return the channel of `node`; raises RunError for an unknown node."""
        if node not in self.channels:
            raise RunError(f"no node '{node}'", hint=did_you_mean(node, self.channels))
        return self.channels[node]


class MemoryChannel(Channel):
    """The channel of one node of a `MemoryHub`; see `protocol.Channel`."""

    def __init__(
        self, hub: MemoryHub, node: str, nodes: Sequence[str], **limits: Any
    ) -> None:
        super().__init__(node, [name for name in nodes if name != node], **limits)
        self._hub = hub

    def join(self) -> None:
        """Return at once: the nodes of one process exist from the start."""

    def abort(self, cause: Cause) -> None:
        """End the run on every node of the hub; only the first cause counts."""
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
        self._hub.channels[to].mailbox.deliver(message)

    def _on_credit(self, source: str, total: int) -> None:
        self._hub.channels[source].mailbox.update_credit(self.node, total)

    def _others(self) -> list[MemoryChannel]:
        return [c for node, c in self._hub.channels.items() if node != self.node]
