"""Channels between node programs that run as threads of one process.

Arrays are passed without a copy: a receiver gets read-only views of the sender's own
arrays, which the sender must therefore leave alone for as long as they are in use. With
`out` they are copied, as over a wire. Bounds, deadlines and ends are those of any
channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from placer.channel import payload, protocol
from placer.channel.mailbox import Mailbox
from placer.channel.message import letter
from placer.channel.protocol import Array, Cause, Key, Piece
from placer.errors import RunError, did_you_mean
from placer.memory import aligned


class MemoryHub:
    """The nodes of one run inside one process; `channel(node)` is a node's end.

    `bound` and `max_message` are bytes, `deadline` and `beat` seconds, as `protocol`
    says.
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
        """The one channel of `node`; RunError for a node that the hub does not have."""
        if node not in self.channels:
            raise RunError(f"no node '{node}'", hint=did_you_mean(node, self.channels))
        return self.channels[node]


class MemoryChannel:
    """One node's end of a `MemoryHub`."""

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
        """Payload bytes of all messages sent so far."""
        return self.mailbox.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Payload bytes of all messages that have arrived so far."""
        return self.mailbox.bytes_received

    @property
    def aborted(self) -> Cause | None:
        """Why the run failed, or None while it has not."""
        return self.mailbox.aborted

    def join(self) -> None:
        """Return at once: the nodes of one process are all there."""

    def send(self, to: str, key: Key, arrays: Sequence[Array]) -> None:
        """Pass read-only views of `arrays` to node `to`; see `protocol.Channel`."""
        self._check_open()

        def what() -> str:
            return f"{key} from {self.node} to {to}"

        views = []
        for array in payload.sendable(arrays, what):
            view = array.view()
            view.flags.writeable = False
            views.append(view)
        message = letter(self.node, key, views)
        payload.check_size(message.nbytes, self._max_message, what)
        self.mailbox.reserve(to, key, message.nbytes, message.cost)
        self._hub.channels[to].mailbox.deliver(message)

    def receive(
        self, source: str, key: Key, *, out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Wait for a message of `source`; see `protocol.Channel`."""
        self._check_open()
        return self.mailbox.take(source, key, out)

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Receive a message piece by piece, each array of the sender's whole."""
        self._check_open()
        return self.mailbox.pieces(source, key)

    def listen(self, edge: int, call: Callable[[str], None]) -> None:
        """Be told of messages of an edge as they arrive; see `protocol.Channel`."""
        self.mailbox.listen(edge, call)

    def share(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Zeroed aligned memory: here every array is passed without a copy."""
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
        return aligned.zeros((nbytes,), np.uint8)

    def abort(self, cause: Cause) -> None:
        """End the run for every node of the hub; the first cause stands."""
        if not self.mailbox.abort(cause):
            return
        for other in self._others():
            if other.mailbox.abort(cause) and other.on_abort is not None:
                other.on_abort(cause)

    def waiting(self) -> tuple[str, ...]:
        """The peers that this node waits for right now."""
        return self.mailbox.waiting()

    def close(self) -> None:
        """Tell the other nodes that this one has ended its run."""
        if self._closed:
            return
        self._closed = True
        self.mailbox.close()
        for other in self._others():
            other.mailbox.depart(self.node)

    def _check_open(self) -> None:
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")

    def _others(self) -> list[MemoryChannel]:
        return [c for node, c in self._hub.channels.items() if node != self.node]

    def _on_credit(self, source: str, total: int) -> None:
        self._hub.channels[source].mailbox.credit(self.node, total)
