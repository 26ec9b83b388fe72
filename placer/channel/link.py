"""The session of a node with one peer: messages in both directions, and credit.

`send` numbers a message and sends its header at once. Its pieces follow as far as the receiver
allows and the connection has room. A message whose pieces must wait does not block other messages.
The remaining pieces are sent later, by the thread that learns that they can be sent.
docs/about/channel.md describes what happens when a connection breaks.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from placer.channel import frames
from placer.channel.cause import Cause
from placer.channel.contents import Contents, read_message
from placer.channel.frame_socket import Buffer, FrameSocket
from placer.channel.frames import Frame, InvalidFrame
from placer.channel.message import Message, PiecedMessage
from placer.channel.outgoing import Outgoing
from placer.channel.pieces import PIECE
from placer.channel.pool import MAX_CHUNKS, ChunkPool, chunk_view
from placer.channel.region import Region, attach
from placer.channel.types import Array, Bytes, Key

if TYPE_CHECKING:
    from placer.channel.session import Session

MAX_EAGER: Final = 4
"""The largest number of pieces of a message to send before its receiver asks for it."""
READS: Final = 16
"""The number of receive calls for one peer before other peers are served."""
MAX_REGIONS: Final = 4096
"""The largest number of regions that a peer may have."""


@dataclass(eq=False)
class Link:
    """The session with one peer.

    Attributes:
        session: the session of this node.
        peer: the peer.
        socket: the connection; set once the peer has connected.
        is_unix: whether the connection is a unix socket.
        eager: the number of pieces of a message to send before the peer asks for it.
        incarnation: the number of the peer's process; None before the first connection.
        seconds: the numbers of second processes of the peer that were refused.
        own_incarnation: the number of this process, as the peer knows it.
        attempts: failed attempts since the last connection.
        retry_at: the time of the next attempt, in monotonic seconds.
        reason: why the last attempt failed, if known.
        heard: whether bytes have arrived since the session's thread reset this flag.
        is_joined: whether the peer has ever been connected.
        ended: whether no bytes can arrive now.
        is_invalid: whether the peer is lost or has broken the protocol.
        peer_clears: whether the peer wants to close.
        knows_failure: whether the peer has reported a failure of the run.
        knows_end: whether the peer has seen the GOODBYE of this node.
    """

    session: Session
    peer: str
    socket: FrameSocket = field(init=False)
    is_unix: bool = False
    eager: int = 0
    incarnation: int | None = None
    seconds: set[int] = field(default_factory=set)
    own_incarnation: int = 0
    attempts: int = 0
    retry_at: float = 0.0
    reason: str = ""
    heard: bool = False
    is_joined: bool = False
    ended: bool = True
    is_invalid: bool = False
    peer_clears: bool = False
    knows_failure: bool = False
    knows_end: bool = False
    _number: int = 0
    # Messages sent over TCP that are not acknowledged.
    _unacknowledged: dict[int, Outgoing] = field(default_factory=dict)
    _acknowledged: int = 0
    _outgoing: dict[int, Outgoing] = field(default_factory=dict)
    _order_lock: threading.Lock = field(default_factory=lambda: threading.Lock())
    _advance_lock: threading.Lock = field(default_factory=lambda: threading.Lock())
    _announced: set[int] = field(default_factory=set)  # regions sent to the peer
    _pool: ChunkPool | None = None
    _last_received: int = 0
    _incoming: dict[int, PiecedMessage] = field(default_factory=dict)
    _filling: int = 0  # the number of the message whose piece is being received
    _peer_regions: dict[int, Bytes] = field(default_factory=dict)
    _chunk_lock: threading.Lock = field(default_factory=lambda: threading.Lock())
    # The messages of chunks that are not consumed yet.
    _chunks: dict[int, PiecedMessage] = field(default_factory=dict)
    _unreported: int = 0  # consumed chunks to return to the peer, as a bit mask
    _credit_sent: int = 0
    _credit_wanted: int = 0  # the credit that the peer waits for, or 0

    # Sending.

    def _put(self, *buffers: Buffer, file: int | None = None) -> None:
        """Send buffers; if the socket is full, have a thread read this connection."""
        self.socket.put(*buffers, file=file)
        if self.socket.full:
            self.session.need(self.peer)

    def tell(self, frame: Frame, file: int | None = None) -> None:
        self._put(frames.encode(frame), file=file)

    def send(
        self,
        node: str,
        to: str,
        key: Key,
        contents: Contents,
        arrays: Sequence[Array],
        *,
        written: bool = True,
    ) -> Outgoing:
        """Send a message between two nodes, without waiting. `arrays` must be
        C-contiguous. If they are not `written` yet, `add_written` sends their
        pieces."""
        # Numbers are assigned, and headers sent, in the order of this lock. Calls that may fail
        # come first: the peer accepts no gaps.
        with self._order_lock:
            if self._pool is None and not contents.is_inline and self.is_unix:
                region = self.session.pool_region()
                if region is not None:
                    self._announce(region)
                    self._pool = ChunkPool(region)
            references = tuple(contents.references.values())
            for reference in references:
                self._announce(self.session.regions.by_number[reference.region])
            self._number += 1
            header = frames.Message(
                self._number, node, to, key, contents.encoded, references
            )
            count = 0 if contents.is_inline else len(contents.pieces)
            message = Outgoing(
                header, contents, arrays, self.eager, count if written else 0
            )
            if not self.is_unix:
                self._unacknowledged[self._number] = message
            self._send_header(message)
        self._advance_or_need()
        return message

    def _advance_or_need(self) -> None:
        if self._outgoing:
            self.advance()
        if self.has_pending:
            self.session.need(self.peer)

    def add_written(self, message: Outgoing, array: int, stop: int) -> None:
        """Send the pieces that are complete once an array is written up to `stop`."""
        if message.add_written(array, stop):
            self._advance_or_need()

    def _send_header(self, message: Outgoing) -> None:
        # In this order, another thread that reads the peer's answer finds the message, and no
        # piece is sent before the header.
        if not message.contents.is_inline:
            self._outgoing[message.header.number] = message
        self._put(message.head())
        message.is_announced = True

    def _announce(self, region: Region) -> None:
        """Send a region to the peer once, before the first frame that refers to it."""
        if region.number not in self._announced:
            self._announced.add(region.number)
            self.tell(frames.Memory(region.number, region.nbytes), file=region.fd)

    def advance(self) -> None:
        # A thread that finds the lock taken need not wait: the thread that holds it checks again
        # after it has released the lock.
        while self._next_message() is not None:
            if not self._advance_lock.acquire(blocking=False):
                return
            try:
                while (message := self._next_message()) is not None:
                    self._put(*message.next_piece(self._pool))
                    if message.sent == len(message.contents.pieces):
                        del self._outgoing[message.header.number]
            finally:
                self._advance_lock.release()

    def _next_message(self) -> Outgoing | None:
        """Return the first message whose next piece can be sent now."""
        if not self._outgoing or self.socket.full or self.socket.broken:
            return None
        # Iterate over a copy: other threads add messages.
        for message in [*self._outgoing.values()]:
            if message.is_allowed and (
                self._pool is None or self._pool.has_room(message.header.number)
            ):
                return message
        return None

    @property
    def has_pending(self) -> bool:
        """Whether any data is still to be sent."""
        return bool(self._outgoing or self.socket.has_queued) and not self.socket.broken

    @property
    def is_informed(self) -> bool:
        """Whether the peer knows of a failure that this node has reported, or cannot be told."""
        return self.is_invalid or self.knows_failure or not self.ended

    @property
    def needs_connection(self) -> bool:
        """Whether the connection is missing and must be opened again."""
        is_broken = self.ended and not self.is_unix and not self.is_over
        return is_broken and not self.is_invalid

    @property
    def is_over(self) -> bool:
        """Whether one of the two nodes has ended its run and the other node knows."""
        return self.knows_end or self.peer in self.session.mailbox.departed

    @property
    def is_blocked(self) -> bool:
        """Whether this connection must be read. A sender waits for it, here or (to
        close) at the peer, or the program expects a message. Called with the mailbox's
        lock held."""
        is_expecting = self.session.mailbox.expects(self.peer)
        return not self.ended and (self.peer_clears or self.has_pending or is_expecting)

    def send_beat(self, message: int = 0, pieces: int = 0, status: bytes = b"") -> None:
        """Send a heartbeat with the credit, and return consumed chunks.

        Args:
            message: the message whose first `pieces` pieces the peer may send; 0 for none.
            pieces: the number of pieces; see `frames.Beat`.
            status: a frame to send afterwards.
        """
        with self._chunk_lock:
            freed, self._unreported = self._unreported, 0
        credit = self.session.mailbox.credits[self.peer]
        self._credit_sent = granted = credit.granted
        beat = frames.Beat(
            granted, self._last_complete, freed, credit.wanted, message, pieces
        )
        self._put(frames.encode(beat) + status)

    @property
    def _last_complete(self) -> int:
        """All messages up to this number have arrived completely."""
        last = self._last_received  # read it before `_incoming`: see `_on_message`
        return min(self._incoming, default=last + 1) - 1

    @property
    def is_delivered(self) -> bool:
        """Whether the peer has received all messages."""
        return self._acknowledged == self._number

    def acknowledge(self, total: int) -> None:
        """Report that the program has received `total` bytes. This is done at once if
        the peer waits for it, or if many bytes are unreported. Otherwise the next
        heartbeat reports it."""
        threshold = self.session.window // 4
        if not self.is_unix:  # the peer stores unacknowledged messages
            threshold = min(frames.INLINE, threshold)
        credit_sent = self._credit_sent
        if credit_sent < self._credit_wanted or total - credit_sent >= threshold:
            self.send_beat()

    # New and broken connections.

    def position(self) -> tuple[int, list[tuple[int, int]]]:
        """Return which messages the peer must send again: see `frames.Hello`. Called
        after the connection has ended."""
        incomplete = [(n, message.arrived) for n, message in self._incoming.items()]
        return self._last_received + 1, incomplete

    def connect(self, socket: FrameSocket, hello: frames.Hello) -> None:
        """Start using a connection: send everything that the peer has not received. The
        session's thread calls this after the earlier connection has ended. Raises
        InvalidFrame for an impossible position of the peer."""
        expected, incomplete = hello.expected, dict(hello.incomplete)
        with self._order_lock, self._advance_lock:
            if not self._acknowledged < expected <= self._number + 1:
                raise InvalidFrame("an impossible position")
            if self.is_joined:
                self.socket.close()
            self.socket, self.is_unix, self._filling = socket, socket.is_unix, 0
            self.incarnation, self.reason, self.attempts = hello.incarnation, "", 0
            self.session.mailbox.credits[self.peer].bound = hello.window
            self.eager = min(MAX_EAGER, hello.window // PIECE)
            self._outgoing.clear()
            self.send_beat()
            for number, received in self._incoming.items():
                self.send_beat(message=number, pieces=received.allowed)
            for number, message in self._unacknowledged.items():
                is_known = number < expected
                message.sent = incomplete.get(number, 0) if is_known else 0
                message.allowed = max(self.eager, message.sent)
                if not is_known:
                    self._send_header(message)
                elif number in incomplete:
                    if message.sent >= len(message.contents.pieces):
                        raise InvalidFrame("an impossible position")
                    self._outgoing[number] = message
            self.ended = False
        self._advance_or_need()

    # Receiving.

    def on_event(self, events: int) -> None:
        """Handle events of the socket: room to send, or received data. When the
        connection ends, all frames that the peer sent before are handled first,
        including a GOODBYE."""
        if self.ended:
            return
        try:
            if events & select.EPOLLOUT:
                self.socket.flush()
                self._handle_frames()  # frames right after the HELLO of a new connection
            self._read()
        except InvalidFrame as why:
            self.lose(f"sent an invalid frame: {why}")
        if self._outgoing:
            self.advance()
        if self.socket.ended and not self.ended:
            self.ended = True
            if self.is_unix and not self.is_over:
                self.lose("lost: its process has ended")
            self.session.connection_ended()

    def _read(self) -> None:
        reads = 0
        # The system does not report bytes that TLS has buffered, so read all of them.
        while reads < READS or self.socket.holds_bytes:
            reads += 1
            before = self.socket.received
            more = self.socket.receive()
            self.heard = self.heard or self.socket.received > before
            self._handle_frames()
            if not more:
                return

    def _handle_frames(self) -> None:
        socket = self.socket
        while socket.filled:
            if self._filling:
                message = self._incoming[self._filling]
                message.add()
                self._end_piece(message)
            arrived = socket.next()
            if arrived is None:
                return
            self._handle(*arrived)

    def lose(self, what: str) -> None:
        """End the run, because the peer is lost; `what` is the reason."""
        self.ended = self.is_invalid = True
        if self.is_joined:
            self.socket.leave()
        if doing := self.session.doing(self.peer):
            what += f"; its last status was: {doing}"
        self.session.fail(Cause(self.peer, f"seen from {self.session.node}", what))

    def _handle(self, frame: Frame, payload: memoryview[int]) -> None:
        match frame:
            case frames.Message():
                self._on_message(frame, payload)
            case frames.Piece():
                self._on_piece(frame)
            case frames.Beat():
                self._on_beat(frame)
            case frames.Clear():
                self.peer_clears = True
                # Include messages that were acknowledged early: they are no longer in the
                # mailbox's list.
                held = [*self._chunks.values()]
                for stored in dict.fromkeys([*self._incoming.values(), *held]):
                    stored.place()
                self.send_beat()
            case frames.Demand():
                self.session.mailbox.acknowledge_all(self.peer)
            case frames.Probe():
                self.session.mailbox.on_probe(self.peer, frame)
            case frames.Memory():
                self._on_memory(frame)
            case frames.Status(doing):
                self._check_node(doing[0].node)
                self.session.mailbox.statuses[doing[0].node] = doing
            case frames.Goodbye():
                self.session.mailbox.mark_departed(self.peer)
                self.tell(frames.Farewell())
                self.socket.finish()
            case frames.Farewell():
                self.knows_end = True
                self.session.mailbox.notify()
            case frames.Abort():
                self.knows_failure = True
                self.session.fail(frame.cause)
            case _:
                raise InvalidFrame("unexpected kind of frame")

    def _on_message(self, header: frames.Message, payload: memoryview[int]) -> None:
        contents = read_message(header, payload, self.session.limits.max_message)
        number = header.number
        if number != self._last_received + 1:
            raise InvalidFrame("wrong message number")
        self._check_node(header.source)
        if header.to not in self.session.own_nodes:
            raise InvalidFrame("a message to another node")
        views = {i: self._view(contents, i) for i in contents.references}
        message: Message
        if contents.is_inline:
            if payload:
                self.socket.keep()
            arrays: list[Array] = [
                views[i] if i in views
                else np.ndarray(shape, dtype, payload, contents.offsets[i])
                for i, (dtype, shape) in enumerate(contents.types)
            ]  # fmt: skip
            nbytes, copied_nbytes = contents.nbytes, contents.copied_nbytes
            message = Message(
                header.source, header.to, header.key, nbytes, copied_nbytes, arrays
            )
        else:
            message = PiecedMessage(
                header,
                contents,
                views,
                self.session.eager,
                lambda pieces: self.send_beat(message=number, pieces=pieces),
                self.session.arena,
            )
            self._incoming[number] = message
        # In this order, because another thread may send a BEAT at any time: a message with missing
        # pieces must not be acknowledged.
        self._last_received = number
        self.session.mailbox.deliver(message)
        if self.peer_clears:
            message.place()
            self.send_beat()

    def _check_node(self, node: str) -> None:
        credit = self.session.mailbox.nodes.get(node)
        if credit is None or credit.peer != self.peer:
            raise InvalidFrame("sender is another node")

    def _on_piece(self, piece: frames.Piece) -> None:
        message = self._incoming.get(piece.message)
        if message is None or piece.index != message.arrived:
            raise InvalidFrame("a piece of an unknown message")
        if piece.index >= message.allowed:
            raise InvalidFrame("a piece that was not requested")
        self._filling = piece.message
        if piece.chunk is not None:
            if piece.nbytes:
                raise InvalidFrame("wrong length of the data")
            self._add_chunk(message, piece.chunk)
            return
        nbytes, views = message.room()
        if piece.nbytes != nbytes:
            raise InvalidFrame("wrong length of the data")
        if self._chunks:  # the peer has no free chunk for this message
            for stored in dict.fromkeys([*self._chunks.values()]):
                stored.empty_chunks()
            self.send_beat()
        self.socket.fill(views)

    def _add_chunk(self, message: PiecedMessage, chunk: int) -> None:
        pool = self._peer_regions.get(0)
        if pool is None or chunk in self._chunks or chunk >= pool.nbytes // PIECE:
            raise InvalidFrame("a chunk that is not free")
        self._chunks[chunk] = message
        view = chunk_view(pool, chunk)
        message.add((view, lambda: self._release_chunk(message, chunk)))
        self._end_piece(message)

    def _end_piece(self, message: PiecedMessage) -> None:
        """Continue after a piece, which is already added to its message."""
        number, self._filling = self._filling, 0
        if message.is_complete:
            del self._incoming[number]
            if self.peer_clears:
                self.send_beat()
        self._return_chunks(message)
        self.session.mailbox.notify()

    def _release_chunk(self, message: PiecedMessage, chunk: int) -> None:
        """Return a consumed chunk to the peer, now or together with later chunks."""
        with self._chunk_lock:
            self._chunks.pop(chunk, None)
            self._unreported |= 1 << chunk
        self._return_chunks(message)

    def _return_chunks(self, message: PiecedMessage) -> None:
        """Return consumed chunks to the peer, several in one frame."""
        # Returning half a pool at a time saves frames, and the sender fills the other half
        # meanwhile. The last chunk of a message returns all chunks, because the next chunk may
        # arrive much later.
        if 0 not in self._peer_regions:
            return
        with self._chunk_lock:
            count = self._unreported.bit_count()
            is_last = message.is_complete and message not in self._chunks.values()
            is_half = 2 * PIECE * count >= self._peer_regions[0].nbytes
            is_due = count and (is_half or is_last)
        if is_due:
            self.send_beat()

    def _on_beat(self, beat: frames.Beat) -> None:
        if beat.freed:
            if self._pool is None:
                raise InvalidFrame("chunks without a pool")
            self._pool.release(beat.freed)
        if beat.received > self._number:
            raise InvalidFrame("an acknowledgement of unsent messages")
        self.session.mailbox.update_credit(self.peer, beat.credit)
        if beat.received > self._acknowledged:
            for number in range(self._acknowledged + 1, beat.received + 1):
                self._unacknowledged.pop(number, None)
            self._acknowledged = beat.received
            if self.is_delivered:
                self.session.mailbox.notify()
        # Set the wish first, then check the credit. `acknowledge` raises the credit first, so one
        # of the two threads sees the change of the other.
        self._credit_wanted = max(self._credit_wanted, beat.wanted)
        granted = self.session.mailbox.credits[self.peer].granted
        if self._credit_sent < min(self._credit_wanted, granted):
            self.send_beat()
        message = self._outgoing.get(beat.message)
        if message is not None and beat.pieces > message.allowed:
            message.allowed = beat.pieces

    def _on_memory(self, memory: frames.Memory) -> None:
        """Map memory of the peer. Its file descriptor arrived with this frame."""
        number, nbytes = memory.region, memory.nbytes
        file = self.socket.take_file()
        if file is None:
            raise InvalidFrame("memory without a file")
        if number in self._peer_regions or len(self._peer_regions) >= MAX_REGIONS:
            os.close(file)
            raise InvalidFrame("wrong region number")
        if number == 0 and (nbytes % PIECE or nbytes > MAX_CHUNKS * PIECE):
            os.close(file)
            raise InvalidFrame("wrong size of the chunk pool")
        self._peer_regions[number] = attach(file, nbytes)

    def _view(self, contents: Contents, i: int) -> Array:
        _, number, offset = contents.references[i]
        region = self._peer_regions.get(number)
        end = offset + contents.sizes[i]
        if number == 0 or region is None or end > region.nbytes:
            raise InvalidFrame("a reference outside shared memory")
        dtype, shape = contents.types[i]
        return region[offset:end].view(dtype).reshape(shape)

    def close(self) -> None:
        """Close the socket, and drop unsent messages and shared memory. Remaining views
        keep their memory mapped."""
        self.socket.close()
        self._outgoing.clear()
        self._incoming.clear()
        self._chunks.clear()
        self._peer_regions.clear()
        if self._pool is not None:
            self._pool.region.close()
