"""Channels between nodes that are threads of one process.

Arrays are passed without a copy: a receiver gets read-only views of the sender's own
arrays, so the sender must not change them while they are in use. With `out` they are
copied. Flow control, deadlines and ends are those of every channel. There are no
threads here: `send` delivers into the mailbox of the receiver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from placer.channel.cause import Cause
from placer.channel.frames import Demand, Probe
from placer.channel.message import Message
from placer.channel.protocol import Channel
from placer.channel.types import Array, Key
from placer.node_kinds import NodeId


def memory_channels(nodes: Iterable[str], **limits: Any) -> dict[str, MemoryChannel]:
    """Return the channel of each node of a run inside one process.

    `limits` are the fields of `types.Limits`.
    """
    names = tuple(nodes)
    channels = {
        node: MemoryChannel(node, [n for n in names if n != node], **limits)
        for node in names
    }
    for channel in channels.values():
        channel.connect({peer: channels[peer] for peer in channel.mailbox.peers})
    return channels


def read_only_views(arrays: Iterable[Array]) -> list[Array]:
    """Return views through which the arrays cannot be written."""
    views = []
    for array in arrays:
        view = array.view()
        view.flags.writeable = False
        views.append(view)
    return views


class MemoryChannel(Channel):
    """The channel of one node; `others`, set later, are those of the other nodes."""

    others: Mapping[str, MemoryChannel]

    def connect(self, others: Mapping[str, MemoryChannel]) -> None:
        """Set the channels of the other nodes."""

        def tell(peer: str, frame: Probe | Demand) -> None:
            mailbox = others[peer].mailbox
            if isinstance(frame, Probe):
                mailbox.on_probe(self.node, frame)
            else:
                mailbox.acknowledge_all(self.node)

        self.others = others
        self.mailbox.tell = tell

    def join(self) -> None:
        """Return at once: the nodes of one process exist from the start."""

    def abort(self, cause: Cause) -> None:
        """End the run on every node; only the first cause counts."""
        if not self.mailbox.abort(cause):
            return
        for other in self.others.values():
            if other.mailbox.abort(cause):
                other.on_abort(cause)

    def streams(self) -> dict[str, str]:
        """Return "thread" for each peer."""
        return dict.fromkeys(self.mailbox.peers, "thread")

    def close(self) -> None:
        """End this node's part and mark it as departed in the other mailboxes."""
        if self._closed:
            return
        self._closed = True
        self.mailbox.close()
        for other in self.others.values():
            other.mailbox.mark_departed(self.node)

    def _transmit(self, to: str, key: Key, arrays: list[Array], follows: bool) -> None:
        """Pass read-only views of `arrays` to node `to`."""
        nbytes = sum(array.nbytes for array in arrays)
        is_process = NodeId(to).process == NodeId(self.node).process
        self.mailbox.reserve(
            to, key, 0 if is_process else nbytes, nbytes, follows=follows
        )
        message = Message(self.node, key, nbytes, nbytes, read_only_views(arrays))
        self.others[to].mailbox.deliver(message)

    def _on_credit(self, source: str, total: int) -> None:
        self.others[source].mailbox.update_credit(self.node, total)
