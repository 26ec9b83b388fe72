"""The channel of a node over ZeroMQ; see the package for how it works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt
import zmq

from placer.channel import payload, protocol, wire_bodies
from placer.channel.endpoint import loopback_endpoint
from placer.channel.joining import wait_for_all, wait_for_late
from placer.channel.liveness import Liveness
from placer.channel.mailbox import Mailbox
from placer.channel.message import MESSAGE_COST, whole_message
from placer.channel.protocol import Aborted, Array, Cause, Key, Piece
from placer.channel.wire_bodies import Hello, InvalidFrame
from placer.channel.zeromq import wire
from placer.channel.zeromq.link import Link
from placer.channel.zeromq.receiver import PartialMessage, PieceOrder, Receiver
from placer.channel.zeromq.socket import ReceiveSocket
from placer.channel.zeromq.wire import Kind
from placer.errors import RunError, did_you_mean
from placer.memory import aligned
from placer.memory.arena import Arena

HELLO_PAUSE: Final = 0.02
"""Seconds between HELLOs until all have joined."""
CLOSE_LINGER: Final = 1.0
"""Seconds that `close` waits until the last frames (GOODBYE, ABORT) are sent."""


class ZeroMQChannel:
    """The channel of one node; every node is a process of its own.

    The methods of `protocol.Channel` are documented there. Opening the channel binds
    the port of this node and starts the channel's thread. `refused` counts the frames
    and connections that were refused, `duplicates` the frames that arrived twice.

    pyzmq's thread for zero-copy sends, one for the whole process, remains after
    `close`.

    Args:
        node: the name of this node.
        endpoints: the address of every node of the run ("worker:0" ->
            "127.0.0.1:4321").
        job: a name that all nodes of a run have, and no other run. Processes that
            cannot guess it are refused.
        bound: bytes that may be on the way to one peer.
        max_message: bytes of the largest message.
        deadline: seconds that a call waits at most.
        join_timeout: seconds that `join` waits at most.
        lost_after: seconds of silence after which a peer is lost.
        beat: seconds between two heartbeats.
        incarnation: a positive 64-bit number that is greater after a restart of the
            node; by default the time in nanoseconds.
        arena: where received arrays are allocated; a new one by default.
        on_abort: see `protocol.Channel`.

    Raises:
        RunError: the node has no address or an address that is not loopback, or its
            port is in use.
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
        incarnation: int | None = None,
        arena: Arena | None = None,
        on_abort: Callable[[Cause], None] | None = None,
    ) -> None:
        if node not in endpoints:
            raise RunError(
                f"no address for node '{node}'", hint=did_you_mean(node, endpoints)
            )
        addresses = {
            name: loopback_endpoint(name, text) for name, text in endpoints.items()
        }
        self.node = node
        self.on_abort = on_abort
        self.arena = arena if arena is not None else Arena()
        self.refused = 0
        self.duplicates = 0
        self._names = sorted(endpoints)
        self._peers = [name for name in self._names if name != node]
        self._addresses = dict(endpoints)
        self._job = job
        self._max_message = max_message
        self._deadline = deadline
        self._join_timeout = join_timeout
        self._beat = beat
        self._tick = min(beat / 2, lost_after / 16, 0.25)
        self._ack_bytes = min(payload.JOIN, bound // 4)
        self._liveness = Liveness(lost_after, beat)
        self._lost_after = lost_after
        number = time.time_ns() if incarnation is None else incarnation
        if not 0 < number < 2**64:
            raise RunError(
                f"{node}: incarnation {number} is not a positive 64-bit number"
            )
        self._stamp = wire.Stamp(self._names.index(node), number, wire.job_digest(job))
        self._mailbox = Mailbox(
            node,
            self._peers,
            bound=bound,
            deadline=deadline,
            beat=beat,
            on_credit=self._on_credit,
        )
        self._receivers = {peer: Receiver() for peer in self._peers}
        self._incarnations: dict[str, int] = {}
        self._greeted: set[str] = set()  # peers that have seen this incarnation
        self._joined = False
        self._informed: set[str] = set()  # peers that know of the failure
        # The credit in the last BEAT to each peer.
        self._credit_sent = dict.fromkeys(self._peers, 0)
        self._waiting_for_credit: set[str] = set()  # peers that wait for credit
        self._closed = False
        self._close_lock = threading.Lock()
        self._stopping = False
        self._flushing = False

        self._context = zmq.Context[zmq.Socket[bytes]]()
        self._links: dict[str, Link] = {}
        try:
            subject = f"{node} cannot listen at {endpoints[node]}"
            self._socket = ReceiveSocket(self._context, addresses[node], subject)
        except BaseException:
            self._context.term()
            raise
        self._socket.set_timeout(HELLO_PAUSE)
        for peer in self._peers:
            self._links[peer] = Link(self._context, addresses[peer])
        self._thread = threading.Thread(
            target=self._run, name=f"placer channel of {node}", daemon=True
        )
        self._thread.start()

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
    def aborted(self) -> Cause | None:
        """The root cause once the run has failed, else None."""
        return self._mailbox.aborted

    @property
    def connected_peers(self) -> tuple[str, ...]:
        """The peers that have exchanged HELLOs with this node, sorted."""
        known, greeted = self._incarnations, self._greeted
        return tuple(p for p in self._peers if p in known and p in greeted)

    def join(self) -> None:
        """Wait until every peer is connected; see `protocol.Channel`."""

        addresses, timeout = self._addresses, self._join_timeout
        wait_for_all(
            self._mailbox, lambda: self.connected_peers, addresses, timeout, "zeromq"
        )
        self._joined = True

    def send(self, to: str, key: Key, arrays: Sequence[Array]) -> None:
        """Queue a message for node `to`; see `protocol.Channel`."""
        self._check_open()

        def what() -> str:
            return f"{key} from {self.node} to {to}"

        checked = payload.check_arrays(arrays, what)
        nbytes = sum(array.nbytes for array in checked)
        payload.check_size(nbytes, self._max_message, what)
        contents = wire.encode_contents(key, checked)
        cost = nbytes + MESSAGE_COST
        self._mailbox.reserve(
            to, key, nbytes, cost, ask=lambda _: self._request_credit(to)
        )
        self._links[to].send_message(
            self._stamp, contents, payload.split_payload(checked)
        )

    def receive(
        self, source: str, key: Key, *, out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Wait for a message of `source`; see `protocol.Channel`."""
        self._check_open()
        return self._mailbox.receive(source, key, out)

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Receive a message with each array as one piece, once all have arrived."""
        self._check_open()
        return self._mailbox.pieces(source, key)

    def listen(self, edge: int, call: Callable[[str], None]) -> None:
        """Call `call(source)` for each message of an edge; see `protocol.Channel`."""
        self._mailbox.listen(edge, call)

    def share(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return zeroed aligned memory; arrays in it are sent like any others."""
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
        return aligned.zeros((nbytes,), np.uint8)

    def abort(self, cause: Cause) -> None:
        """End the run on every node; see `protocol.Channel`."""
        if self._mailbox.abort(cause) and not self._closed:
            self._broadcast_abort(cause)

    def waiting(self) -> tuple[str, ...]:
        """Return the peers that this node waits for now."""
        return self._mailbox.waiting()

    def close(self) -> None:
        """Deliver what was sent, say goodbye, and leave no thread and no socket.

        Waits up to the deadline until the peers have what was sent to them. After a
        failure nothing is delivered, but peers that have not connected yet get
        `joining.LATE_JOIN_WAIT` seconds to connect and learn the cause.
        """
        # The order matters. The channel's thread runs until everything is delivered, as
        # it handles acknowledgements and RESEND. GOODBYE is the last frame: its number
        # lets the peer notice a loss. Links are closed after the thread, which uses
        # them.
        assert threading.current_thread() is not self._thread
        with self._close_lock:
            if self._closed:
                return
            if self.aborted is None and self._joined:
                self._flush()
            elif self.aborted is not None and not self._joined:
                wait_for_late(self._mailbox, lambda: self._informed)
            if self.aborted is None:
                for link in self._links.values():
                    link.send_state(self._stamp, Kind.GOODBYE)
            self._closed = True
            self._mailbox.close()
            self._stopping = True
            wake_socket = self._socket.wake()
            self._thread.join()
            wake_socket.close(linger=0)
            self._close_sockets(CLOSE_LINGER)

    # Run by threads of the program.

    def _check_open(self) -> None:
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
        if not self._joined and self.aborted is None:
            raise RunError(f"{self.node}: the channel has not joined its peers yet")

    def _request_credit(self, peer: str) -> None:
        """Ask `peer` to acknowledge at once from now on: this node waits for room."""
        self._send_beat(peer, wire.ANSWER)

    def _flush(self) -> None:
        def delivered() -> bool:
            gone = self._mailbox.departed
            return all(
                link.is_delivered
                for peer, link in self._links.items()
                if peer not in gone
            )

        self._flushing = True
        for peer in self._peers:
            self._request_credit(peer)
        # A failure ends the flush; the caller finds it in `aborted`.
        with suppress(Aborted):
            self._mailbox.wait_until(delivered, self._deadline)

    def _on_credit(self, source: str, total: int) -> None:
        """Acknowledge what the program received, now or with the next heartbeat.

        Small messages wait for the heartbeat, which halves the frames of a step, unless
        the source waits for room.
        """
        if (
            source in self._waiting_for_credit
            or total - self._credit_sent[source] >= self._ack_bytes
        ):
            self._send_beat(source)

    def _send_beat(self, peer: str, flags: int = 0) -> None:
        credit = self._mailbox.granted_credit(peer)
        self._credit_sent[peer] = credit
        self._links[peer].send_state(
            self._stamp,
            Kind.BEAT,
            last_received=self._receivers[peer].expected - 1,
            credit=credit,
            flags=flags,
        )

    def _send_hello(self, peer: str) -> None:
        self._links[peer].send_control(
            self._stamp,
            Kind.HELLO,
            a=self._incarnations.get(peer, 0),
            flags=0 if peer in self._greeted else wire.ANSWER,
            body=wire_bodies.encode(Hello(self._job, self.node, peer, self._names)),
        )

    def _broadcast_abort(self, cause: Cause) -> None:
        for peer in self._peers:
            self._send_abort(peer, cause)

    def _send_abort(self, peer: str, cause: Cause) -> None:
        """Send a failure to a peer, if there is a connection to it.

        The peer accepts it only from a node whose HELLO it has seen.
        """
        if not self._joined:
            self._send_hello(peer)
        body = wire_bodies.encode_cause(cause)
        if self._links[peer].send_control(self._stamp, Kind.ABORT, body=body):
            self._informed.add(peer)
            self._mailbox.notify()

    # Run by the channel's thread.

    def _run(self) -> None:
        due = beat_due = 0.0
        pause = HELLO_PAUSE
        try:
            while not self._stopping:
                first = self._socket.receive_first()
                if first is not None and not self._stopping:
                    self._accept(first)
                now = time.monotonic()
                if now >= due:
                    if self._joined and pause != self._tick:
                        pause = self._tick
                        self._socket.set_timeout(pause)
                    due = now + pause
                    is_beat = now >= beat_due
                    if is_beat:
                        beat_due = now + self._beat
                    self._on_tick(now, is_beat)
        except Exception as error:
            # Without this thread nothing would end a wait before its deadline.
            what = f"{type(error).__name__}: {error}"
            self._fail(Cause(self.node, "channel", what))
            raise

    def _on_tick(self, now: float, is_beat: bool) -> None:
        cause = self.aborted
        for peer in self._peers:
            if cause is not None and peer not in self._informed:
                self._send_abort(peer, cause)
            elif not (self._joined and peer in self._greeted):
                self._send_hello(peer)
            elif is_beat and peer not in self._mailbox.departed:
                self._send_beat(peer)
        for peer in self._liveness.lost_peers(now):
            self._liveness.forget(peer)
            what = f"lost: no heartbeat for {self._lost_after:g} s"
            self._fail(Cause(peer, f"seen from {self.node}", what))
        self.refused += self._socket.count_rejected()

    def _fail(self, cause: Cause) -> None:
        """Report a failure found here: to the peers first, then to this process."""
        if self._mailbox.abort(cause):
            self._broadcast_abort(cause)
            if self.on_abort is not None:
                self.on_abort(cause)

    def _accept(self, first: bytes) -> None:
        """Handle one ZeroMQ message; an invalid one is only counted."""
        try:
            header = wire.read_header(first, self._stamp.job)
            if header.source >= len(self._names) or header.source == self._stamp.source:
                raise InvalidFrame("source")
            peer = self._names[header.source]
            if header.kind is Kind.HELLO:
                self._on_hello(peer, header, wire_bodies.read_hello(wire.body(first)))
            elif header.incarnation != self._incarnations.get(peer):
                raise InvalidFrame("incarnation")
            # From here on the frame is of the known incarnation of the peer.
            self._liveness.hear(peer, time.monotonic())
            if header.kind in (Kind.MESSAGE, Kind.CHUNK):
                self._on_piece(peer, header, first)
            elif header.kind is Kind.BEAT:
                self._on_beat(peer, header)
            elif header.kind is Kind.RESEND:
                self._links[peer].resend(self._stamp, header.a)
            elif header.kind is Kind.GOODBYE:
                self._liveness.forget(peer)
                self._mailbox.mark_departed(peer)
            elif header.kind is Kind.ABORT:
                self._informed.add(peer)
                self._fail(wire_bodies.read_cause(wire.body(first)))
        except InvalidFrame:
            self.refused += 1
        self._socket.drop_rest()

    def _on_hello(self, peer: str, header: wire.Header, hello: Hello) -> None:
        if (hello.job, hello.node, hello.to) != (self._job, peer, self.node):
            raise InvalidFrame("hello")
        if hello.nodes != self._names:
            raise InvalidFrame("nodes")
        # A frame of an older incarnation comes late, from a process that has ended. A
        # greater one is a restart: before `join` has returned the new process takes the
        # place of the old one, afterwards the state of the run is lost with the old
        # one.
        known = self._incarnations.get(peer)
        if known is not None and header.incarnation < known:
            raise InvalidFrame("incarnation")
        if known is not None and header.incarnation > known and self._joined:
            self._fail(Cause(peer, f"seen from {self.node}", "was restarted"))
            return
        self._incarnations[peer] = header.incarnation
        if header.a == self._stamp.incarnation:
            self._greeted.add(peer)
        cause = self.aborted
        if cause is not None:
            self._send_abort(peer, cause)
        elif header.flags & wire.ANSWER:
            self._send_hello(peer)
        self._mailbox.notify()

    def _on_beat(self, peer: str, header: wire.Header) -> None:
        link = self._links[peer]
        link.mark_delivered(header.b)
        self._mailbox.update_credit(peer, header.c)
        if self._flushing:
            self._mailbox.notify()
        if header.flags & wire.ANSWER:
            self._waiting_for_credit.add(peer)
            self._send_beat(peer)
        if self._receivers[peer].expected <= header.a:
            self._request_resend(peer)

    def _on_piece(self, peer: str, header: wire.Header, first: bytes) -> None:
        """Receive the next piece of the next message; drop any other piece."""
        is_first = header.kind is Kind.MESSAGE
        receiver = self._receivers[peer]
        order = receiver.classify(
            header.a, 0 if is_first else header.b, is_first=is_first
        )
        if order is not PieceOrder.NEXT:
            if order is PieceOrder.DUPLICATE:
                self.duplicates += 1
            else:
                self._request_resend(peer)
            return
        partial = receiver.partial
        length = header.c
        inline_payload = b""
        if partial is None:
            body: bytes | memoryview = first
            if header.flags & wire.INLINED:
                length = header.b
                if not 0 < length <= wire.INLINE:
                    raise InvalidFrame("inline")
                body, inline_payload = memoryview(first)[:-length], first[-length:]
            contents = wire.read_contents(body, header.b, self._max_message)
            out = self._mailbox.posted_out(peer, contents.key)
            partial = PartialMessage(contents, header.b, self.arena, out)
        if inline_payload:
            partial.scatter(inline_payload)
        elif length or partial.total:
            self._socket.receive_piece(partial, length)
        # Only now: after an invalid frame the state is as before, and the source can
        # send the piece again.
        receiver.partial = partial
        # The source found room for a message, so it waits no more.
        self._waiting_for_credit.discard(peer)
        if partial.advance(length):
            receiver.finish()
            self._mailbox.deliver(whole_message(peer, partial.key, partial.arrays))

    def _request_resend(self, peer: str) -> None:
        """Ask for what was lost, at most once in `beat` seconds.

        Until the answer arrives, every further frame shows the same gap.
        """
        receiver = self._receivers[peer]
        now = time.monotonic()
        if now - receiver.resend_requested_at >= self._beat:
            receiver.resend_requested_at = now
            self._links[peer].send_control(
                self._stamp, Kind.RESEND, a=receiver.expected
            )

    def _close_sockets(self, linger: float) -> None:
        gone = self._mailbox.departed
        for peer, link in self._links.items():
            link.close(0 if peer in gone else linger)
        self._socket.close()
        self._context.term()
