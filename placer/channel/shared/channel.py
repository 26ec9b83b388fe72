"""A node's channel over shared memory to all others; see the package.

There is no thread between a message and the program: the thread that sends puts it into
the ring and the socket, the thread that waits for it reads it from there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from placer.channel import payload, protocol
from placer.channel.endpoint import loopback
from placer.channel.joining import wait_for_all, wait_for_late
from placer.channel.mailbox import Mailbox
from placer.channel.message import MESSAGE_COST
from placer.channel.protocol import Aborted, Array, Cause, Key, Piece
from placer.channel.shared.event_loop import Upkeep
from placer.channel.shared.header import describe
from placer.channel.shared.link import Link
from placer.channel.shared.region import Bytes, Regions, supported
from placer.channel.shared.rendezvous import Met, Rendezvous
from placer.channel.shared.stream import Stream
from placer.errors import RunError, did_you_mean
from placer.memory.arena import Arena


class SharedMemoryChannel:
    """One node's channel to all others, each a process of its own on this machine.

    `endpoints` gives every node's address ("worker:0" -> "127.0.0.1:4321"), which is a
    name here and no port: RunError when a node of this job is already there. `job` is
    the same on every node of a run and on no other's; processes of other users are
    turned away whatever they know. `deadline`, `join_timeout`, `lost_after` (silence
    that means loss) and `beat` (between signs of life) are seconds, `bound` and
    `max_message` bytes.

    `refused` counts connections that were turned away. RunError where the system has no
    such memory.
    """

    def __init__(
        self,
        node: str,
        endpoints: Mapping[str, str],
        job: str,
        *,
        bound: int = protocol.BOUND,
        max_message: int = protocol.MAX_MESSAGE,
        deadline: float = protocol.DEADLINE,
        join_timeout: float = 600.0,
        lost_after: float = 8.0,
        beat: float = protocol.BEAT,
        arena: Arena | None = None,
        on_abort: Callable[[Cause], None] | None = None,
    ) -> None:
        if node not in endpoints:
            raise RunError(
                f"no address for node '{node}'", hint=did_you_mean(node, endpoints)
            )
        if not supported():
            raise RunError(
                "this system has no shared memory that channels can use",
                hint="choose the carrier zeromq",
            )
        for name, text in endpoints.items():
            loopback(name, text)
        self.node = node
        self.arena = arena if arena is not None else Arena()
        self._peers = [name for name in sorted(endpoints) if name != node]
        self._texts = dict(endpoints)
        self._max_message = max_message
        self._deadline = deadline
        self._join_timeout = join_timeout
        self._ack_bytes = bound // 4
        self._mailbox = Mailbox(
            node,
            self._peers,
            bound=bound,
            deadline=deadline,
            beat=beat,
            on_credit=self._on_credit,
            reader=self,
        )
        self._regions = Regions()
        self._joined = False
        self._closed = False
        self._close_lock = threading.Lock()
        self._upkeep = Upkeep(
            self._peers,
            self._mailbox,
            partial(Rendezvous, node, endpoints, job),
            self._link,
            beat=beat,
            lost_after=lost_after,
        )
        self._upkeep.on_abort = on_abort
        self._upkeep.start()

    # The protocol.

    @property
    def bytes_sent(self) -> int:
        """Payload bytes of all messages sent so far."""
        return self._mailbox.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Payload bytes of all messages that have arrived so far."""
        return self._mailbox.bytes_received

    @property
    def on_abort(self) -> Callable[[Cause], None] | None:
        """Called with the cause of a failure that was learned from elsewhere."""
        return self._upkeep.on_abort

    @on_abort.setter
    def on_abort(self, call: Callable[[Cause], None] | None) -> None:
        self._upkeep.on_abort = call

    @property
    def aborted(self) -> Cause | None:
        """Why the run failed, or None while it has not."""
        return self._mailbox.aborted

    @property
    def refused(self) -> int:
        """Connections that were turned away so far."""
        return self._upkeep.rendezvous.refused

    @property
    def met(self) -> tuple[str, ...]:
        """The peers that have been met, sorted."""
        return tuple(peer for peer in self._peers if peer in self._upkeep.links)

    def join(self) -> None:
        """Wait until every peer has been met.

        RunError names each peer that was not within `join_timeout` seconds, and its
        address; `Aborted` when a peer failed meanwhile.
        """

        addresses, timeout = self._texts, self._join_timeout
        wait_for_all(
            self._mailbox, lambda: self.met, addresses, timeout, "shared memory"
        )
        self._joined = True
        self._upkeep.hurried = False

    def send(self, to: str, key: Key, arrays: Sequence[Array]) -> None:
        """Send a message to node `to`; see `protocol.Channel`."""
        self._check_open()

        def what() -> str:
            return f"{key} from {self.node} to {to}"

        checked = payload.sendable(arrays, what)
        types, described = describe(checked)
        places = self._regions.find(checked)
        carried = described.total
        for i in places:
            carried -= described.sizes[i]
        payload.check_size(carried, self._max_message, what)
        cost = carried + MESSAGE_COST
        link = self._upkeep.links.get(to)
        ask = link.ask if link is not None else None
        self._mailbox.reserve(to, key, described.total, cost, ask)
        assert link is not None
        link.outgoing.send(key, checked, types, described, places)
        if link.outgoing.busy:
            # Blocks may have come back meanwhile.
            while link.outgoing.busy and self._mailbox.read(to):
                pass
            link.watch(self._upkeep.epoll)

    def receive(
        self, source: str, key: Key, *, out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Wait for a message of `source`; see `protocol.Channel`."""
        self._check_open()
        return self._mailbox.take(source, key, out)

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Receive a message piece by piece, from where it lies in shared memory."""
        self._check_open()
        return self._mailbox.pieces(source, key)

    def listen(self, edge: int, call: Callable[[str], None]) -> None:
        """Be told of messages of an edge as they arrive; see `protocol.Channel`."""
        self._mailbox.listen(edge, call)

    def share(self, nbytes: int) -> Bytes:
        """Memory that peers are given without a copy; see `protocol.Channel`."""
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
        return self._regions.make(nbytes, self.node)

    def abort(self, cause: Cause) -> None:
        """End the run for everybody with this root cause; the first cause stands."""
        if self._mailbox.abort(cause) and not self._closed:
            self._upkeep.tell(cause)
            self._upkeep.rouse()

    def waiting(self) -> tuple[str, ...]:
        """The peers that this node waits for right now."""
        return self._mailbox.waiting()

    def close(self) -> None:
        """Deliver what was sent, say goodbye, and leave no thread and no socket.

        Waits up to the deadline for peers to make room for what was sent to them. After
        a failure nothing is flushed: the peers were told the cause. Those that had not
        come yet get a moment to come and be told.
        """
        with self._close_lock:
            if self._closed:
                return
            if self.aborted is not None:
                wait_for_late(self._mailbox, lambda: self.met)
            elif self._joined:
                self._flush()
            self._closed = True
            self._upkeep.stop()
            self._mailbox.close()
            self._upkeep.close()
            self._regions.close()

    # The mailbox's reader: what the threads that wait do.

    def read(self, peer: str, timeout: float) -> bool:
        """Handle the next frame of `peer`, waiting up to `timeout` seconds for it."""
        link = self._upkeep.links.get(peer)
        return link is not None and link.read(timeout)

    def left(self, peer: str) -> None:
        """Have the channel's thread go on with what waits for room."""
        link = self._upkeep.links.get(peer)
        if link is not None and link.waits:
            link.watch(self._upkeep.epoll)

    # Inside.

    def _link(self, met: Met, wake: int) -> Link:
        return Link(
            met.peer,
            Stream(met.connection, wake, self.arena),
            self._mailbox,
            self.arena,
            self._max_message,
            self._upkeep.fail,
        )

    def _check_open(self) -> None:
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
        if not self._joined and self.aborted is None:
            raise RunError(f"{self.node}: the channel has not joined its peers yet")

    def _on_credit(self, source: str, total: int) -> None:
        """Acknowledge what the program received, now or with the next beat."""
        self._upkeep.links[source].acknowledge(total, self._ack_bytes)

    def _flush(self) -> None:
        def busy() -> list[Link]:
            gone = self._mailbox.departed
            links = self._upkeep.links.values()
            return [x for x in links if x.outgoing.busy and x.peer not in gone]

        self._upkeep.hurried = True
        for link in busy():
            link.beat(clear=True)
            link.watch(self._upkeep.epoll)
        # A failure ends the flush; `aborted` keeps it for whoever wants to know.
        with suppress(Aborted):
            self._mailbox.until(lambda: not busy(), self._deadline)
