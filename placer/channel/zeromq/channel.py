"""Channels between processes over ZeroMQ; the frames are described in `wire`.

Program threads put their messages onto the sockets themselves. One thread of the channel
owns the socket that everything arrives on: it puts messages together straight in the
arena (or in the `out` of a waiting receive), answers, and beats, so a node that compiles
or computes for minutes is alive to the others.
"""

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
from placer.channel.endpoint import loopback
from placer.channel.joining import wait_for_all, wait_for_late
from placer.channel.liveness import Liveness
from placer.channel.mailbox import Mailbox
from placer.channel.message import MESSAGE_COST, letter
from placer.channel.protocol import Aborted, Array, Cause, Key, Piece
from placer.channel.wire_bodies import Hello, Refused
from placer.channel.zeromq import wire
from placer.channel.zeromq.link import Link
from placer.channel.zeromq.receiver import Incoming, Partial, Place
from placer.channel.zeromq.socket import Inlet
from placer.channel.zeromq.wire import Kind
from placer.errors import RunError, did_you_mean
from placer.memory import aligned
from placer.memory.arena import Arena

HELLO_PAUSE: Final = 0.02
"""Seconds between HELLOs until all have joined."""
LEAVE: Final = 1.0
"""Seconds that last words (GOODBYE, ABORT) get to leave the process in `close`."""


class ZeroMQChannel:
    """One node's channel to all others, each a process of its own.

    `endpoints` gives every node's address ("worker:0" -> "127.0.0.1:4321"); this node
    listens at its own, which is bound here: RunError when the port is in use. `job` is
    the same on every node of a run and on no other's; a name that cannot be guessed
    keeps strangers out. `deadline`, `join_timeout`, `lost_after` (silence that means
    loss) and `beat` (between signs of life) are seconds, `bound` and `max_message`
    bytes. `incarnation` must be greater for a node that is started again; by default it
    is the clock's nanoseconds.

    `refused` counts frames and connections that were turned away, `duplicates` frames
    that came twice.

    pyzmq's own thread for zero-copy sends (one for the whole process, of no channel)
    stays after `close`.
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
        addresses = {name: loopback(name, text) for name, text in endpoints.items()}
        self.node = node
        self.on_abort = on_abort
        self.arena = arena if arena is not None else Arena()
        self.refused = 0
        self.duplicates = 0
        self._names = sorted(endpoints)
        self._peers = [name for name in self._names if name != node]
        self._texts = dict(endpoints)
        self._job = job
        self._max_message = max_message
        self._deadline = deadline
        self._join_timeout = join_timeout
        self._beat = beat
        self._tick = min(beat / 2, lost_after / 16, 0.25)
        self._ack_bytes = min(payload.JOIN, bound // 4)
        self._liveness = Liveness(lost_after, beat)
        self._lost_after = lost_after
        start = time.time_ns() if incarnation is None else incarnation
        if not 0 < start < 2**64:
            raise RunError(
                f"{node}: incarnation {start} is not a positive 64-bit number"
            )
        self._stamp = wire.Stamp(self._names.index(node), start, wire.job_digest(job))
        self._mailbox = Mailbox(
            node,
            self._peers,
            bound=bound,
            deadline=deadline,
            beat=beat,
            on_credit=self._on_credit,
        )
        self._incoming = {peer: Incoming() for peer in self._peers}
        self._incarnations: dict[str, int] = {}
        self._met: set[str] = set()  # peers that have seen this incarnation of us
        self._joined = False
        self._informed: set[str] = set()  # peers that know of the failure
        self._told = dict.fromkeys(self._peers, 0)  # credit in the last BEAT to each
        self._eager: set[str] = set()  # peers that wait for credit
        self._closed = False
        self._close_lock = threading.Lock()
        self._stopping = False
        self._flushing = False

        self._context = zmq.Context[zmq.Socket[bytes]]()
        self._links: dict[str, Link] = {}
        try:
            who = f"{node} cannot listen at {endpoints[node]}"
            self._inlet = Inlet(self._context, addresses[node], who)
        except BaseException:
            self._context.term()
            raise
        self._inlet.listen_for(HELLO_PAUSE)
        for peer in self._peers:
            self._links[peer] = Link(self._context, addresses[peer])
        self._thread = threading.Thread(
            target=self._run, name=f"placer channel of {node}", daemon=True
        )
        self._thread.start()

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
    def aborted(self) -> Cause | None:
        """Why the run failed, or None while it has not."""
        return self._mailbox.aborted

    @property
    def met(self) -> tuple[str, ...]:
        """The peers that have said hello and have heard ours, sorted."""
        known, met = self._incarnations, self._met
        return tuple(p for p in self._peers if p in known and p in met)

    def join(self) -> None:
        """Wait until every peer has said hello and has heard ours.

        RunError names each peer that did not within `join_timeout` seconds, and its
        address; `Aborted` when a peer failed meanwhile.
        """

        addresses, timeout = self._texts, self._join_timeout
        wait_for_all(self._mailbox, lambda: self.met, addresses, timeout, "zeromq")
        self._joined = True

    def send(self, to: str, key: Key, arrays: Sequence[Array]) -> None:
        """Queue a message for node `to`; see `protocol.Channel`."""
        self._check_open()

        def what() -> str:
            return f"{key} from {self.node} to {to}"

        checked = payload.sendable(arrays, what)
        nbytes = sum(array.nbytes for array in checked)
        payload.check_size(nbytes, self._max_message, what)
        contents = wire.encode_contents(key, checked)
        cost = nbytes + MESSAGE_COST
        self._mailbox.reserve(to, key, nbytes, cost, ask=lambda _: self._ask(to))
        self._links[to].message(self._stamp, contents, payload.cut(checked))

    def receive(
        self, source: str, key: Key, *, out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Wait for a message of `source`; see `protocol.Channel`."""
        self._check_open()
        return self._mailbox.take(source, key, out)

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Receive a message piece by piece: each array whole, once all have come."""
        self._check_open()
        return self._mailbox.pieces(source, key)

    def listen(self, edge: int, call: Callable[[str], None]) -> None:
        """Be told of messages of an edge as they arrive; see `protocol.Channel`."""
        self._mailbox.listen(edge, call)

    def share(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Zeroed aligned memory; arrays in it are sent as any others are."""
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
        return aligned.zeros((nbytes,), np.uint8)

    def abort(self, cause: Cause) -> None:
        """End the run for everybody with this root cause; the first cause stands."""
        if self._mailbox.abort(cause) and not self._closed:
            self._tell(cause)

    def waiting(self) -> tuple[str, ...]:
        """The peers that this node waits for right now."""
        return self._mailbox.waiting()

    def close(self) -> None:
        """Deliver what was sent, say goodbye, and leave no thread and no socket.

        Waits up to the deadline for peers to have what was sent to them. After a
        failure nothing is flushed: the peers were told the cause. Those that had not
        come yet get a moment to come and be told.
        """
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
                    link.state(self._stamp, Kind.GOODBYE)
            self._closed = True
            self._mailbox.close()
            self._stopping = True
            waker = self._inlet.wake()
            self._thread.join()
            waker.close(linger=0)
            self._close_sockets(LEAVE)

    # What the program's threads do.

    def _check_open(self) -> None:
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
        if not self._joined and self.aborted is None:
            raise RunError(f"{self.node}: the channel has not joined its peers yet")

    def _ask(self, peer: str) -> None:
        """Have `peer` acknowledge at once from now on: we wait for room."""
        self._send_beat(peer, wire.ANSWER)

    def _flush(self) -> None:
        def delivered() -> bool:
            gone = self._mailbox.departed
            return all(
                link.delivered for peer, link in self._links.items() if peer not in gone
            )

        self._flushing = True
        for peer in self._peers:
            self._ask(peer)
        # A failure ends the flush; `aborted` keeps it for whoever wants to know.
        with suppress(Aborted):
            self._mailbox.until(delivered, self._deadline)

    def _on_credit(self, source: str, total: int) -> None:
        """Acknowledge what the program received, now or with the next beat.

        Small messages wait for the beat, which halves the frames of a step, unless the
        source stands waiting for room.
        """
        if source in self._eager or total - self._told[source] >= self._ack_bytes:
            self._send_beat(source)

    def _send_beat(self, peer: str, flags: int = 0) -> None:
        credit = self._mailbox.credited(peer)
        self._told[peer] = credit
        self._links[peer].state(
            self._stamp,
            Kind.BEAT,
            got=self._incoming[peer].expected - 1,
            credit=credit,
            flags=flags,
        )

    def _say_hello(self, peer: str) -> None:
        self._links[peer].control(
            self._stamp,
            Kind.HELLO,
            a=self._incarnations.get(peer, 0),
            flags=0 if peer in self._met else wire.ANSWER,
            body=wire_bodies.encode(Hello(self._job, self.node, peer, self._names)),
        )

    def _tell(self, cause: Cause) -> None:
        for peer in self._peers:
            self._inform(peer, cause)

    def _inform(self, peer: str, cause: Cause) -> None:
        """Tell a peer of a failure, if there is a connection to it.

        It believes only those whose HELLO it has seen.
        """
        if not self._joined:
            self._say_hello(peer)
        body = wire_bodies.encode_cause(cause)
        if self._links[peer].control(self._stamp, Kind.ABORT, body=body):
            self._informed.add(peer)
            self._mailbox.notify()

    # What the channel's thread does.

    def _run(self) -> None:
        due = beat_due = 0.0
        pause = HELLO_PAUSE
        try:
            while not self._stopping:
                first = self._inlet.first()
                if first is not None and not self._stopping:
                    self._accept(first)
                now = time.monotonic()
                if now >= due:
                    if self._joined and pause != self._tick:
                        pause = self._tick
                        self._inlet.listen_for(pause)
                    due = now + pause
                    beats = now >= beat_due
                    if beats:
                        beat_due = now + self._beat
                    self._on_tick(now, beats)
        except Exception as error:
            # Without this thread every wait would last to its deadline.
            what = f"{type(error).__name__}: {error}"
            self._fail(Cause(self.node, "channel", what))
            raise

    def _on_tick(self, now: float, beats: bool) -> None:
        cause = self.aborted
        for peer in self._peers:
            if cause is not None and peer not in self._informed:
                self._inform(peer, cause)
            elif not (self._joined and peer in self._met):
                self._say_hello(peer)
            elif beats and peer not in self._mailbox.departed:
                self._send_beat(peer)
        for peer in self._liveness.lost(now):
            self._liveness.forget(peer)
            what = f"lost: no heartbeat for {self._lost_after:g} s"
            self._fail(Cause(peer, f"seen from {self.node}", what))
        self.refused += self._inlet.strangers()

    def _fail(self, cause: Cause) -> None:
        """A failure learned here: tell everybody, then whoever runs this process."""
        if self._mailbox.abort(cause):
            self._tell(cause)
            if self.on_abort is not None:
                self.on_abort(cause)

    def _accept(self, first: bytes) -> None:
        """Handle one ZeroMQ message; whatever is wrong with it is counted, no more."""
        try:
            header = wire.read_header(first, self._stamp.job)
            if header.source >= len(self._names) or header.source == self._stamp.source:
                raise Refused("source")
            peer = self._names[header.source]
            if header.kind is Kind.HELLO:
                self._on_hello(peer, header, wire_bodies.read_hello(wire.body(first)))
            elif header.incarnation != self._incarnations.get(peer):
                raise Refused("incarnation")
            self._liveness.hear(peer, time.monotonic())
            if header.kind in (Kind.MESSAGE, Kind.CHUNK):
                self._on_piece(peer, header, first)
            elif header.kind is Kind.BEAT:
                self._on_beat(peer, header)
            elif header.kind is Kind.RESEND:
                self._links[peer].resend(self._stamp, header.a)
            elif header.kind is Kind.GOODBYE:
                self._liveness.forget(peer)
                self._mailbox.depart(peer)
            elif header.kind is Kind.ABORT:
                self._informed.add(peer)
                self._fail(wire_bodies.read_cause(wire.body(first)))
        except Refused:
            self.refused += 1
        self._inlet.drop_rest()

    def _on_hello(self, peer: str, header: wire.Header, hello: Hello) -> None:
        if (hello.job, hello.node, hello.to) != (self._job, peer, self.node):
            raise Refused("hello")
        if hello.nodes != self._names:
            raise Refused("nodes")
        known = self._incarnations.get(peer)
        if known is not None and header.incarnation < known:
            raise Refused("incarnation")
        if known is not None and header.incarnation > known and self._joined:
            self._fail(Cause(peer, f"seen from {self.node}", "was started again"))
            return
        self._incarnations[peer] = header.incarnation
        if header.a == self._stamp.incarnation:
            self._met.add(peer)
        cause = self.aborted
        if cause is not None:
            self._inform(peer, cause)
        elif header.flags & wire.ANSWER:
            self._say_hello(peer)
        self._mailbox.notify()

    def _on_beat(self, peer: str, header: wire.Header) -> None:
        link = self._links[peer]
        link.forget(header.b)
        self._mailbox.credit(peer, header.c)
        if self._flushing:
            self._mailbox.notify()
        if header.flags & wire.ANSWER:
            self._eager.add(peer)
            self._send_beat(peer)
        if self._incoming[peer].expected <= header.a:
            self._ask_again(peer)

    def _on_piece(self, peer: str, header: wire.Header, first: bytes) -> None:
        """Take the next piece of the next message; drop any other."""
        opens = header.kind is Kind.MESSAGE
        incoming = self._incoming[peer]
        place = incoming.place(header.a, 0 if opens else header.b, opens=opens)
        if place is not Place.NEXT:
            if place is Place.BEFORE:
                self.duplicates += 1
            else:
                self._ask_again(peer)
            return
        partial = incoming.partial
        length = header.c
        inline = b""
        if partial is None:
            body: bytes | memoryview = first
            if header.flags & wire.INLINED:
                length = header.b
                if not 0 < length <= wire.INLINE:
                    raise Refused("inline")
                body, inline = memoryview(first)[:-length], first[-length:]
            contents = wire.read_contents(body, header.b, self._max_message)
            out = self._mailbox.posted(peer, contents.key)
            partial = Partial(contents, header.b, self.arena, out)
        if inline:
            partial.scatter(inline)
        elif length or partial.total:
            self._inlet.piece(partial, length)
        incoming.partial = partial
        self._eager.discard(peer)
        if partial.advance(length):
            incoming.finish()
            self._mailbox.deliver(letter(peer, partial.key, partial.arrays))

    def _ask_again(self, peer: str) -> None:
        """Ask for what was lost, but not again before an answer could have come."""
        incoming = self._incoming[peer]
        now = time.monotonic()
        if now - incoming.asked_at >= self._beat:
            incoming.asked_at = now
            self._links[peer].control(self._stamp, Kind.RESEND, a=incoming.expected)

    def _close_sockets(self, linger: float) -> None:
        gone = self._mailbox.departed
        for peer, link in self._links.items():
            link.close(0 if peer in gone else linger)
        self._inlet.close()
        self._context.term()
