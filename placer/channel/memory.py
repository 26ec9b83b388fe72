"""Channels between nodes that are threads of one process.

Arrays are passed without a copy: a receiver gets read-only views of the sender's own
arrays, so the sender must not change them while they are in use. With `out` they are
copied. Flow control, deadlines and ends are those of every channel. There are no
threads here: `send` delivers into the mailbox of the receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from placer.channel import payload, protocol
from placer.channel.mailbox import Mailbox
from placer.channel.message import whole_message
from placer.channel.protocol import Array, Cause, Key, Piece
from placer.errors import RunError, did_you_mean
from placer.memory import aligned


class MemoryHub:
    """The channels of all nodes of a run inside one process.

    `bound` and `max_message` are in bytes, `deadline` and `beat` in seconds; see
    `protocol`.
    """

    def __init__(
        self,
        nodes: Iterable[str],
        *,
        bound: int = protocol.BOUND,
        max_message: int = protocol.MAX_MESSAGE,
        deadline: float = protocol.DEADLINE,
        beat: float = protocol.BEAT,
    ) -> None:
        names = tuple(nodes)
        self.channels = {
            node: MemoryChannel(self, node, names, bound, max_message, deadline, beat)
            for node in names
        }

    def channel(self, node: str) -> MemoryChannel:
        """Return the channel of `node`; raises RunError for an unknown node."""
        if node not in self.channels:
            raise RunError(f"no node '{node}'", hint=did_you_mean(node, self.channels))
        return self.channels[node]


class MemoryChannel:
    """The channel of one node of a `MemoryHub`; see `protocol.Channel`."""

    def __init__(
        self,
        hub: MemoryHub,
        node: str,
        nodes: Sequence[str],
        bound: int,
        max_message: int,
        deadline: float,
        beat: float,
    ) -> None:
        self.node = node
        self.on_abort: Callable[[Cause], None] | None = None
        self._hub = hub
        self._max_message = max_message
        self._closed = False
        self.mailbox = Mailbox(
            node,
            [name for name in nodes if name != node],
            bound=bound,
            deadline=deadline,
            beat=beat,
            on_credit=self._on_credit,
        )

    @property
    def bytes_sent(self) -> int:
        """The payload bytes of all messages that were sent."""
        return self.mailbox.bytes_sent

    @property
    def bytes_received(self) -> int:
        """The payload bytes of all messages that have arrived."""
        return self.mailbox.bytes_received

    @property
    def aborted(self) -> Cause | None:
        """The root cause once the run has failed, else None."""
        return self.mailbox.aborted

    def join(self) -> None:
        """Return at once: the nodes of one process exist from the start."""

    def send(self, to: str, key: Key, arrays: Sequence[Array]) -> None:
        """Pass read-only views of `arrays` to node `to`; see `protocol.Channel`."""
        self._check_open()

        def what() -> str:
            return f"{key} from {self.node} to {to}"

        views = []
        for array in payload.check_arrays(arrays, what):
            view = array.view()
            view.flags.writeable = False
            views.append(view)
        message = whole_message(self.node, key, views)
        payload.check_size(message.nbytes, self._max_message, what)
        self.mailbox.reserve(to, key, message.nbytes, message.cost)
        self._hub.channels[to].mailbox.deliver(message)

    def receive(
        self, source: str, key: Key, *, out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Wait for a message of `source`; see `protocol.Channel`."""
        self._check_open()
        return self.mailbox.receive(source, key, out)

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Receive a message with each array of the sender as one piece."""
        self._check_open()
        return self.mailbox.pieces(source, key)

    def listen(self, edge: int, call: Callable[[str], None]) -> None:
        """Call `call(source)` for each message of an edge; see `protocol.Channel`."""
        self.mailbox.listen(edge, call)

    def share(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return zeroed aligned memory; every array is passed without a copy here."""
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
        return aligned.zeros((nbytes,), np.uint8)

    def abort(self, cause: Cause) -> None:
        """End the run on every node of the hub; only the first cause counts."""
        if not self.mailbox.abort(cause):
            return
        for other in self._others():
            if other.mailbox.abort(cause) and other.on_abort is not None:
                other.on_abort(cause)

    def waiting(self) -> tuple[str, ...]:
        """Return the peers that this node waits for now."""
        return self.mailbox.waiting()

    def close(self) -> None:
        """End this node's part and mark it as departed in the other mailboxes."""
        if self._closed:
            return
        self._closed = True
        self.mailbox.close()
        for other in self._others():
            other.mailbox.mark_departed(self.node)

    def _check_open(self) -> None:
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")

    def _others(self) -> list[MemoryChannel]:
        return [c for node, c in self._hub.channels.items() if node != self.node]

    def _on_credit(self, source: str, total: int) -> None:
        self._hub.channels[source].mailbox.update_credit(self.node, total)
