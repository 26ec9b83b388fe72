"""The channel of a node over ZeroMQ; see the package for how it works."""

from __future__ import annotations

import time

import zmq

from placer.channel import frame_bodies, payload
from placer.channel.cause import Cause
from placer.channel.endpoint import listen_error
from placer.channel.frame_bodies import Hello, InvalidFrame
from placer.channel.message import Message
from placer.channel.session import CLOSE_LINGER, Session
from placer.channel.types import Array, Key
from placer.channel.zeromq import frames
from placer.channel.zeromq.frames import Kind
from placer.channel.zeromq.link import Link
from placer.channel.zeromq.receiver import FIRST, PartialMessage, Receiver
from placer.channel.zeromq.socket import ReceiveSocket


class ZeroMQChannel(Session):
    """The channel of one node; see `session.Session` for its arguments.

    Opening it binds the port of this node. `refused` counts the frames and connections
    that were refused, `duplicates` the frames that arrived twice.

    pyzmq's thread for zero-copy sends, one for the whole process, remains after
    `close`.
    """

    transport = "zeromq"

    def _open(self) -> None:
        self.refused = 0
        self.duplicates = 0
        number = self._names.index(self.node)
        # A process that is started later has a greater incarnation.
        self._stamp = frames.Stamp(number, time.time_ns(), frames.job_digest(self._job))
        self._incarnations: dict[str, int] = {}
        self._greeted: set[str] = set()  # peers that have seen this incarnation
        self.connected = self._greeted  # their incarnations are known as well
        self._informed: set[str] = set()  # peers that know of the failure
        peers = self.mailbox.peers
        self._receivers = {peer: Receiver() for peer in peers}
        # The credit in the last BEAT to each peer, and the peers that wait for credit.
        self._credit_sent = dict.fromkeys(peers, 0)
        self._waiting_for_credit: set[str] = set()
        self._context = zmq.Context[zmq.Socket[bytes]]()
        try:
            self._socket = ReceiveSocket(self._context, self._addresses[self.node])
        except zmq.ZMQError as error:
            self._context.term()
            where = self._endpoints[self.node]
            raise listen_error(self.node, where, error) from None
        self._links = {
            peer: Link(self._context, self._addresses[peer], self._stamp)
            for peer in peers
        }

    # Called by threads of the program.

    def _transmit(self, to: str, key: Key, arrays: list[Array]) -> None:
        nbytes = sum(array.nbytes for array in arrays)
        contents = frames.encode_contents(key, arrays)
        self.mailbox.reserve(
            to, key, nbytes, nbytes, ask=lambda _: self._request_delivery(to)
        )
        self._links[to].send_message(contents, payload.split_payload(arrays))

    def _on_credit(self, source: str, total: int) -> None:
        """Acknowledge what the program received, now or with the next heartbeat.

        Small messages wait for the heartbeat, which halves the frames of a step, unless
        the source waits for room.
        """
        unreported = total - self._credit_sent[source]
        if source in self._waiting_for_credit or unreported >= min(
            payload.JOIN, self._limits.bound // 4
        ):
            self._send_beat(source)

    def _send_beat(self, peer: str, flags: int = 0) -> None:
        credit = self.mailbox.granted_credit(peer)
        self._credit_sent[peer] = credit
        last_received = self._receivers[peer].expected - 1
        self._links[peer].send(Kind.BEAT, None, last_received, credit, flags=flags)

    def _send_hello(self, peer: str) -> None:
        self._links[peer].send(
            Kind.HELLO,
            self._incarnations.get(peer, 0),
            flags=0 if peer in self._greeted else frames.ANSWER,
            body=frame_bodies.encode(self._hello(self.node, peer)),
        )

    def _send_abort(self, peer: str, cause: Cause) -> None:
        """Send a failure to a peer, if there is a connection to it.

        The peer accepts it only from a node whose HELLO it has seen.
        """
        if not self._joined:
            self._send_hello(peer)
        body = frame_bodies.encode_cause(cause)
        if self._links[peer].send(Kind.ABORT, 0, body=body):
            self._informed.add(peer)
            self.mailbox.notify()

    def _broadcast_abort(self, cause: Cause) -> None:
        for peer in self.mailbox.peers:
            self._send_abort(peer, cause)

    def _undelivered_peers(self) -> set[str]:
        return {p for p, link in self._links.items() if link.unacknowledged}

    def _request_delivery(self, peer: str) -> None:
        """Ask `peer` to acknowledge at once from now on: this node waits for it."""
        self._send_beat(peer, frames.ANSWER)

    def _wake(self) -> None:
        # Only the end of the run has to wake the thread. It finds failures itself, and
        # threads of the program do not wait for frames.
        if self._closed:
            self._socket.wake()

    # Run by the session's thread.

    def _poll(self, timeout: float) -> None:
        first = self._socket.receive_first(timeout)
        if first is not None and not self._closed:
            self._accept(first)

    def _on_tick(self, now: float, is_beat: bool) -> None:
        cause = self.aborted
        for peer in self.mailbox.peers:
            if cause is not None and peer not in self._informed:
                self._send_abort(peer, cause)
            elif not (self._joined and peer in self._greeted):
                self._send_hello(peer)
            elif is_beat and peer not in self.mailbox.departed:
                self._send_beat(peer)
        super()._on_tick(now, is_beat)
        self.refused += self._socket.count_rejected()

    def _accept(self, first: bytes) -> None:
        """Handle one ZeroMQ message; an invalid one is only counted."""
        try:
            header = frames.read_header(first, self._stamp.job)
            if header.source >= len(self._names) or header.source == self._stamp.source:
                raise InvalidFrame("source")
            peer = self._names[header.source]
            if header.kind is Kind.HELLO:
                hello = frame_bodies.read_hello(frames.body(first))
                self._on_hello(peer, header, hello)
            elif header.incarnation != self._incarnations.get(peer):
                raise InvalidFrame("incarnation")
            # From here on the frame is of the known incarnation of the peer.
            self._liveness.hear(peer, time.monotonic())
            if header.kind in (Kind.MESSAGE, Kind.CHUNK):
                self._on_piece(peer, header, first)
            elif header.kind is Kind.BEAT:
                self._on_beat(peer, header)
            elif header.kind is Kind.RESEND:
                self._links[peer].resend(header.a)
            elif header.kind is Kind.GOODBYE:
                self.mailbox.mark_departed(peer)
            elif header.kind is Kind.ABORT:
                self._informed.add(peer)
                self._fail(frame_bodies.read_cause(frames.body(first)))
        except InvalidFrame:
            self.refused += 1
        self._socket.drop_rest()

    def _on_hello(self, peer: str, header: frames.Header, hello: Hello) -> None:
        if hello != self._hello(peer, self.node):
            raise InvalidFrame("hello")
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
        elif header.flags & frames.ANSWER:
            self._send_hello(peer)
        self.mailbox.notify()

    def _on_beat(self, peer: str, header: frames.Header) -> None:
        link = self._links[peer]
        link.mark_delivered(header.b)
        self.mailbox.update_credit(peer, header.c)
        if self._flushing:
            self.mailbox.notify()
        if header.flags & frames.ANSWER:
            self._waiting_for_credit.add(peer)
            self._send_beat(peer)
        if self._receivers[peer].expected <= header.a:
            self._request_resend(peer)

    def _on_piece(self, peer: str, header: frames.Header, first: bytes) -> None:
        """Receive the next piece of the next message; drop any other piece."""
        receiver = self._receivers[peer]
        piece = header.a, FIRST if header.kind is Kind.MESSAGE else header.b
        if piece < receiver.next_piece:
            self.duplicates += 1
            return
        if piece > receiver.next_piece:
            self._request_resend(peer)
            return
        partial = receiver.partial
        length = header.c
        inline_payload = b""
        if partial is None:
            body: bytes | memoryview = first
            if header.flags & frames.INLINED:
                length = header.b
                if not 0 < length <= frames.INLINE:
                    raise InvalidFrame("inline")
                body, inline_payload = memoryview(first)[:-length], first[-length:]
            maximum = self._limits.max_message
            key, types = frames.read_contents(body, header.b, maximum)
            out = self.mailbox.posted_out(peer, key)
            partial = PartialMessage(key, types, self._arena, out)
        if inline_payload:
            partial.scatter(inline_payload)
        elif length or partial.total:
            self._socket.receive_piece(partial, length)
        # Only now: after an invalid frame the state is as before, and the source can
        # send the piece again.
        receiver.partial = partial
        # The source found room for a message, so it waits no more.
        self._waiting_for_credit.discard(peer)
        partial.filled += length
        if partial.filled == partial.total:
            receiver.partial = None
            receiver.expected += 1
            message = Message(
                peer, partial.key, partial.total, partial.total, partial.arrays
            )
            self.mailbox.deliver(message)

    def _request_resend(self, peer: str) -> None:
        """Ask for what was lost, at most once in `beat` seconds.

        Until the answer arrives, every further frame shows the same gap.
        """
        receiver = self._receivers[peer]
        now = time.monotonic()
        if now - receiver.resend_requested_at >= self._limits.beat:
            receiver.resend_requested_at = now
            self._links[peer].send(Kind.RESEND, receiver.expected)

    def _close_sockets(self) -> None:
        # GOODBYE is the last frame: its number lets the peer notice a loss.
        for peer, link in self._links.items():
            if self.aborted is None:
                link.send(Kind.GOODBYE)
            link.close(0 if peer in self.mailbox.departed else CLOSE_LINGER)
        self._socket.close()
        self._context.term()
