"""Channels between nodes that are threads of one process.

Arrays are passed without a copy: a receiver gets read-only views of the sender's own arrays, so
the sender must not change them while they are in use. With `out`, the arrays are copied. Flow
control, deadlines and shutdown are the same as for every channel. No extra threads exist: `send`
delivers into the mailbox of the receiver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from placer.channel.cause import Cause
from placer.channel.frames import Demand, Probe
from placer.channel.interface import Channel
from placer.channel.mailbox import Carrier, Mailbox
from placer.channel.message import Message
from placer.channel.payload import read_only_views
from placer.channel.types import Array, Key, Limits
from placer.place.node_kinds import NodeId


def memory_channels(nodes: Iterable[str], **limits: Any) -> dict[str, MemoryChannel]:
    """Return the channel of each node of a run inside one process. `limits` are the
    fields of `types.Limits`."""
    names = tuple(nodes)
    channels: dict[str, MemoryChannel] = {}
    for node in names:
        channels[node] = MemoryChannel(node, names, channels, Limits(**limits))
    return channels


class MemoryChannel(Channel, Carrier):
    """The channel of one node among `nodes`, which are all in this process.

    `channels` maps every node to its channel, and may be filled later. `Channel` and
    `Carrier` document the methods.
    """

    def __init__(
        self,
        node: str,
        nodes: Sequence[str],
        channels: Mapping[str, MemoryChannel],
        limits: Limits,
    ) -> None:
        peers = [each for each in nodes if each != node]
        super().__init__(node, Mailbox(node, peers, limits, self), self)
        self._channels = channels

    def join(self) -> None:
        pass  # the nodes of one process exist from the start

    def abort(self, cause: Cause) -> None:
        if self.mailbox.abort(cause):
            for peer in self.mailbox.peers:
                other = self._channels[peer]
                if other.mailbox.abort(cause):
                    other.on_abort(cause)

    def streams(self) -> dict[str, str]:
        return dict.fromkeys(self.mailbox.peers, "thread")

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.mailbox.close()
        for peer in self.mailbox.peers:
            self._channels[peer].mailbox.mark_departed(self.node)

    def transmit(
        self, node: str, to: str, key: Key, arrays: list[Array], follows: bool
    ) -> None:
        nbytes = sum(array.nbytes for array in arrays)
        is_process = NodeId(to).process == NodeId(node).process
        self.mailbox.reserve(
            node, to, key, 0 if is_process else nbytes, nbytes, follows
        )
        views = read_only_views(arrays)
        self._channels[to].mailbox.deliver(
            Message(node, to, key, nbytes, nbytes, views)
        )

    def tell(self, peer: str, frame: Probe | Demand) -> None:
        mailbox = self._channels[peer].mailbox
        if isinstance(frame, Probe):
            mailbox.on_probe(self.node, frame)
        else:
            mailbox.acknowledge_all(self.node)

    def acknowledge(self, peer: str, total: int) -> None:
        self._channels[peer].mailbox.update_credit(self.node, total)
