"""The channel of a node over shared memory; see the package for how it works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from placer.channel import payload, protocol
from placer.channel.endpoint import loopback_endpoint
from placer.channel.joining import wait_for_all, wait_for_late
from placer.channel.mailbox import Mailbox
from placer.channel.message import MESSAGE_COST
from placer.channel.protocol import Aborted, Array, Cause, Key, Piece
from placer.channel.shared.event_loop import EventLoop
from placer.channel.shared.header import encode_types
from placer.channel.shared.link import Link
from placer.channel.shared.region import Bytes, Regions, is_supported
from placer.channel.shared.rendezvous import PeerConnection, Rendezvous
from placer.channel.shared.stream import Stream
from placer.errors import RunError, did_you_mean
from placer.memory.arena import Arena


class SharedMemoryChannel:
    """The channel of one node; every node is a process of its own on this machine.

    The methods of `protocol.Channel` are documented there. Opening the channel starts
    its thread, which connects to the peers.

    Args:
        node: the name of this node.
        endpoints: the address of every node of the run ("worker:0" ->
            "127.0.0.1:4321"). Addresses only distinguish nodes here; no port is used.
        job: a name that all nodes of a run have, and no other run. Connections of other
            users are refused in any case.
        bound: bytes that may be on the way to one peer.
        max_message: bytes of the largest message, not counting memory of `share`.
        deadline: seconds that a call waits at most.
        join_timeout: seconds that `join` waits at most.
        lost_after: seconds of silence after which a peer is lost.
        beat: seconds between two heartbeats.
        arena: where received arrays are allocated; a new one by default.
        on_abort: see `protocol.Channel`.

    Raises:
        RunError: the node has no address or an address that is not loopback, another
            process listens as this node, or the system lacks this kind of memory.
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
        if not is_supported():
            raise RunError(
                "this system has no shared memory that channels can use",
                hint="choose the transport zeromq",
            )
        for name, text in endpoints.items():
            loopback_endpoint(name, text)
        self.node = node
        self.arena = arena if arena is not None else Arena()
        self._peers = [name for name in sorted(endpoints) if name != node]
        self._addresses = dict(endpoints)
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
        self._event_loop = EventLoop(
            self._peers,
            self._mailbox,
            partial(Rendezvous, node, endpoints, job),
            self._make_link,
            beat=beat,
            lost_after=lost_after,
        )
        self._event_loop.on_abort = on_abort
        self._event_loop.start()

    # The interface of protocol.Channel.

    @property
    def bytes_sent(self) -> int:
        """The payload bytes of all messages that were sent."""
        return self._mailbox.bytes_sent

    @property
    def bytes_received(self) -> int:
        """The payload bytes of all messages that have arrived."""
        return self._mailbox.bytes_received

    @property
    def on_abort(self) -> Callable[[Cause], None] | None:
        """The hook for failures of other nodes; see `protocol.Channel`."""
        return self._event_loop.on_abort

    @on_abort.setter
    def on_abort(self, call: Callable[[Cause], None] | None) -> None:
        self._event_loop.on_abort = call

    @property
    def aborted(self) -> Cause | None:
        """The root cause once the run has failed, else None."""
        return self._mailbox.aborted

    @property
    def refused(self) -> int:
        """The number of connections that were refused."""
        return self._event_loop.rendezvous.refused

    @property
    def connected_peers(self) -> tuple[str, ...]:
        """The peers that are connected, sorted."""
        return tuple(peer for peer in self._peers if peer in self._event_loop.links)

    def join(self) -> None:
        """Wait until every peer is connected; see `protocol.Channel`."""

        addresses, timeout = self._addresses, self._join_timeout
        wait_for_all(
            self._mailbox,
            lambda: self.connected_peers,
            addresses,
            timeout,
            "shared memory",
        )
        self._joined = True
        self._event_loop.fast_ticks = False

    def send(self, to: str, key: Key, arrays: Sequence[Array]) -> None:
        """Send a message to node `to`; see `protocol.Channel`."""
        self._check_open()

        def what() -> str:
            return f"{key} from {self.node} to {to}"

        checked = payload.check_arrays(arrays, what)
        types, array_types = encode_types(checked)
        references = self._regions.find(checked)
        copied_nbytes = array_types.total
        for i in references:
            copied_nbytes -= array_types.sizes[i]
        payload.check_size(copied_nbytes, self._max_message, what)
        cost = copied_nbytes + MESSAGE_COST
        link = self._event_loop.links.get(to)
        request_credit = link.request_credit if link is not None else None
        self._mailbox.reserve(to, key, array_types.total, cost, request_credit)
        assert link is not None
        link.sender.send(key, checked, types, array_types, references)
        if link.sender.has_pending:
            # FREE frames that have arrived may make room: read them now rather than
            # wake the event loop for them.
            while link.sender.has_pending and self._mailbox.read(to):
                pass
            link.watch(self._event_loop.epoll)

    def receive(
        self, source: str, key: Key, *, out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Wait for a message of `source`; see `protocol.Channel`."""
        self._check_open()
        return self._mailbox.receive(source, key, out)

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Receive a message as views of shared memory; see `protocol.Channel`."""
        self._check_open()
        return self._mailbox.pieces(source, key)

    def listen(self, edge: int, call: Callable[[str], None]) -> None:
        """Call `call(source)` for each message of an edge; see `protocol.Channel`."""
        self._mailbox.listen(edge, call)

    def share(self, nbytes: int) -> Bytes:
        """Return memory that peers map; see `protocol.Channel`."""
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
        return self._regions.allocate(nbytes, self.node)

    def abort(self, cause: Cause) -> None:
        """End the run on every node; see `protocol.Channel`."""
        if self._mailbox.abort(cause) and not self._closed:
            self._event_loop.broadcast_abort(cause)
            self._event_loop.wake_all()

    def waiting(self) -> tuple[str, ...]:
        """Return the peers that this node waits for now."""
        return self._mailbox.waiting()

    def close(self) -> None:
        """Deliver what was sent, say goodbye, and leave no thread and no socket.

        Waits up to the deadline for room at the peers. After a failure nothing is
        delivered, but peers that have not connected yet get `joining.LATE_JOIN_WAIT`
        seconds to connect and learn the cause.
        """
        # The order matters. Flush while the event loop still sends what finds room.
        # `_closed` then refuses new calls. Stop the event loop before the mailbox,
        # which waits until no thread reads a socket, so that the sockets can be closed.
        with self._close_lock:
            if self._closed:
                return
            if self.aborted is not None:
                wait_for_late(self._mailbox, lambda: self.connected_peers)
            elif self._joined:
                self._flush()
            self._closed = True
            self._event_loop.stop()
            self._mailbox.close()
            self._event_loop.close()
            self._regions.close()

    # The interface of reader.Reader, which the mailbox calls.

    def read(self, peer: str, timeout: float) -> bool:
        """Handle the next frame of `peer`; see `reader.Reader`."""
        link = self._event_loop.links.get(peer)
        return link is not None and link.read(timeout)

    def reading_stopped(self, peer: str) -> None:
        """Let the event loop serve a blocked sender; see `reader.Reader`."""
        link = self._event_loop.links.get(peer)
        if link is not None and link.has_blocked_sender:
            link.watch(self._event_loop.epoll)

    # Internal.

    def _make_link(self, connection: PeerConnection, wake: int) -> Link:
        return Link(
            connection.peer,
            Stream(connection.connection, wake, self.arena),
            self._mailbox,
            self.arena,
            self._max_message,
            self._event_loop.fail,
        )

    def _check_open(self) -> None:
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
        if not self._joined and self.aborted is None:
            raise RunError(f"{self.node}: the channel has not joined its peers yet")

    def _on_credit(self, source: str, total: int) -> None:
        """Acknowledge what the program received, now or with the next heartbeat."""
        self._event_loop.links[source].acknowledge(total, self._ack_bytes)

    def _flush(self) -> None:
        """Wait until everything that was sent has left this node.

        Peers are asked to copy it out of the ring, because their programs may receive
        it much later.
        """

        def busy_links() -> list[Link]:
            gone = self._mailbox.departed
            links = self._event_loop.links.values()
            return [x for x in links if x.sender.has_pending and x.peer not in gone]

        self._event_loop.fast_ticks = True
        for link in busy_links():
            link.send_beat(clear=True)
            link.watch(self._event_loop.epoll)
        # A failure ends the flush; the caller finds it in `aborted`.
        with suppress(Aborted):
            self._mailbox.wait_until(lambda: not busy_links(), self._deadline)
