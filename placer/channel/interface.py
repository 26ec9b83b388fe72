"""The interface of a channel, and the code that all transports share.

A node has one `Channel`. A message is a list of arrays, addressed by its source and a `Key`
(edge, step, microbatch). Messages may be received in any order. Messages with the same source
and key arrive in the order in which they were sent.

**Memory.** `share` returns memory that a channel may pass on without a copy: over shared memory,
a receiver sees the sender's own bytes. Nothing prevents writes to them. A receiver sees
everything written before `send`. The sender may write there again once it knows, from other
messages, that every receiver has finished reading.

**Flow control.** A message costs its payload bytes plus 64. Arrays that are passed on between
processes without a copy cost nothing. `send` waits while the unreceived messages to a peer would
cost more than `bound` bytes in total. docs/about/channel.md explains why this cannot deadlock.

**Shutdown.** Every wait has a deadline, and its error names the peer that was waited for.
`abort` ends the run on every node with one root cause. `close` ends this node's part without a
failure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from placer.channel import payload
from placer.channel.cause import Aborted, Cause
from placer.channel.mailbox import Carrier, Mailbox, WatchWait
from placer.channel.open_message import OpenMessage
from placer.channel.types import Array, Key, Piece
from placer.errors import RunError
from placer.system.memory import aligned

__all__ = ["Aborted", "Array", "Cause", "Channel", "Key", "Piece"]


class Channel(ABC):
    """The channel of one node to all other nodes of the run.

    All methods may be called from any thread, at any time; `join` is called once.

    Attributes:
        node: the name of this node.
        mailbox: stores the node's messages.
        on_abort: called with the root cause when another node has failed or a peer is
            lost, in the thread that finds it. It is not called for this node's own
            `abort`. It can end a process that is blocked outside the channel.
        describe: returns the node's activity, such as "step 5", for the errors of other
            nodes. It is called about once a second, from any thread.
    """

    def __init__(self, node: str, mailbox: Mailbox, carrier: Carrier) -> None:
        self.node = node
        self.on_abort: Callable[[Cause], object] = lambda cause: None
        self.describe: Callable[[], str] = lambda: ""
        self.mailbox = mailbox
        self._carrier = carrier
        self._closed = False

    @property
    def bytes_sent(self) -> int:
        """The payload bytes of all messages that were sent to other processes."""
        return self.mailbox.bytes_sent[self.node]

    @property
    def aborted(self) -> Cause | None:
        """The root cause once the run has failed, None before."""
        return self.mailbox.aborted

    @abstractmethod
    def join(self) -> None:
        """Wait until every peer is connected; call it once, before the first message.

        Raises:
            RunError: if peers did not connect in time (the message names each peer with its
                address), or a peer left meanwhile.
            Aborted: if the run failed meanwhile.
        """

    def send(
        self, to: str, key: Key, arrays: Sequence[Array], *, follows: bool = False
    ) -> None:
        """Queue a message for a peer; wait while the bound is exceeded.

        Args:
            to: the name of the receiving node.
            key: the address of the message.
            arrays: the payload. The arrays must not change until the message has been
                delivered; a reply computed from the message proves its delivery. Arrays
                that are not C-contiguous are copied here. Small messages (up to 64 KiB)
                may be copied, larger ones are not.
            follows: whether the message continues an earlier message; it then does not
                wait.

        Raises:
            RunError: if the peer does not exist or has ended its run, the message is larger
                than `max_message` bytes (not counting shared memory), a dtype is not
                supported, or the deadline passed.
            Aborted: if the run has failed.
        """
        self.check_open()
        checked = payload.check_arrays(
            arrays, lambda: f"{key} from {self.node} to {to}"
        )
        self._carrier.transmit(self.node, to, key, checked, follows)

    def rest(self, is_resting: bool) -> None:
        """Note that the node only waits for messages from now on, or that it goes on. While it
        rests, the channel needs less CPU time."""
        self._carrier.tick_slowly(is_resting)

    def wait_without_limit(self, is_unlimited: bool) -> None:
        """Note whether the waits of this process have no deadline from now on. A run that has
        failed, and a lost peer, still end them."""
        self.mailbox.has_deadline = not is_unlimited

    def begin_send(self, to: str, key: Key, arrays: Sequence[Array]) -> OpenMessage:
        """Start sending a message whose arrays are still being written.

        If the payload is copied to a connection, parts of it are sent as soon as they are
        written. Otherwise the whole payload is sent at the end.

        Args:
            to, key: as in `send`.
            arrays: the payload, C-contiguous. Written parts must not change until the
                message has been delivered.

        Returns:
            The message. The caller must call its `end`, unless the run fails.

        Raises:
            RunError, Aborted: as in `send`, from here or from `end`.
        """
        self.check_open()
        message = self._carrier.open_message(self.node, to, key, arrays)
        return message or OpenMessage(lambda: self.send(to, key, arrays))

    def receive(
        self, source: str, key: Key, *, out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Wait for a message and return its arrays.

        Args:
            source: the name of the sending node.
            key: the address of the message.
            out: for each array, None or a writable C-contiguous array of the same dtype and
                shape to receive into. `out` may be written to at any time until this
                returns, and also after it has raised an error.

        Returns:
            The arrays, in the order sent: `out[i]` if given, otherwise a 64-byte aligned
            array in the arena, or a read-only view of the sender's array.

        Raises:
            RunError: if the deadline passed, the source ended its run before it sent the
                message, or `out` does not fit.
            Aborted: if the run has failed.
        """
        self.check_open()
        return self.mailbox.arrays(self.mailbox.claim(self.node, [(source, key)]), out)

    def expect(self, source: str, key: Key, out: Sequence[Array | None]) -> None:
        """Provide arrays for a message, so that it may arrive before `receive` is called.

        Args:
            source: the name of the sending node.
            key: the address of the message.
            out: as in `receive`, which must be called with the same arrays. The arrays may
                be written to from now on.

        Raises RunError if the peer does not exist.
        """
        self.check_open()
        self.mailbox.expect(self.node, source, key, out)

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Receive a message piece by piece, in order, as its data arrives.

        Requesting the first piece consumes the message. It counts as received when the
        iterator ends or is closed; closing it discards the rest. Iterators of several
        sources may be open at once; each iterator belongs to one thread.

        Args:
            source: the name of the sending node.
            key: the address of the message.

        Returns:
            An iterator of (index of the array, index of the first element, 1-D view of the
            elements). Together, the pieces cover all elements of all arrays; empty arrays
            have no pieces. A view is valid until the next piece is requested, and may be
            read-only. It is 64-byte aligned unless it is a view of the sender's own array.
            Messages of the same dtypes and shapes have the same pieces.

        Raises:
            RunError, Aborted: as in `receive`, from the iterator.
        """
        self.check_open()
        return self.mailbox.pieces(
            lambda: self.mailbox.claim(self.node, [(source, key)])
        )

    def pieces_of_first(
        self, addresses: Sequence[tuple[str, Key]]
    ) -> tuple[str, Key, Iterator[Piece]]:
        """Wait for the first of several messages, and receive it piece by piece.

        If several messages have arrived, the earliest one is returned. A source that has
        sent several messages does not delay the other sources.

        Args:
            addresses: the source and the key of each message, at least one.

        Returns:
            The source and the key of the message, and its pieces, as in `pieces`.

        Raises:
            RunError: if the deadline passed, or all sources ended their run before they
                sent the message.
            Aborted: if the run has failed.
        """
        self.check_open()
        message = self.mailbox.claim(self.node, addresses)
        return message.source, message.key, self.mailbox.pieces(lambda: message)

    def listen(self, edge: int, call: Callable[[str], object]) -> None:
        """Call `call(source)` for each received and future message of an edge.

        The call happens once the message can be received: here, or in the thread that has
        read it from the transport. So it must not block. An edge has one listener; a second
        listener replaces the first.
        """
        self.mailbox.listen(self.node, edge, call)

    def watch_waits(self, watch: WatchWait) -> None:
        """Enter the context that `watch` returns around every wait of this node; see `mailbox`."""
        self.mailbox.watch_waits(self.node, watch)

    def share(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return `nbytes` bytes of zeroed, 64-byte aligned memory to send from.

        A C-contiguous array inside this memory reaches another process as a read-only view
        of the same memory, if the transport supports it and `out` has no array for it.
        Otherwise it is sent like any other array. The memory lives as long as the channel
        and all views of it.

        Raises RunError if the channel is closed or the system has too little memory.
        """
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
        return self._allocate(nbytes)

    @abstractmethod
    def abort(self, cause: Cause) -> None:
        """End the run on every node with a root cause; only the first cause counts.

        Every waiting or later call, here and on the peers, raises `Aborted`. Does not wait.
        """

    @abstractmethod
    def streams(self) -> dict[str, str]:
        """Return the kind of stream to each connected peer. It is "shared memory",
        "unix socket", "tls", "tcp" or "thread"."""

    def waiting(self, without: Container[int] = ()) -> tuple[str, ...]:
        """Return the nodes that calls on this node currently wait for, sorted. Messages on
        the edges in `without` do not count."""
        return self.mailbox.waiting(self.node, without)

    @abstractmethod
    def close(self) -> None:
        """End this node's part: deliver all sent messages, and say goodbye to the peers.

        Waits up to the deadline for delivery. Afterwards peers do not report this node as
        lost, all threads and sockets of the channel are closed, and waiting calls raise
        RunError.

        After a failure nothing is delivered, but peers that have not connected yet get a few
        seconds to connect and learn the cause. A run that fails meanwhile raises no error:
        `aborted` holds the cause. May be called more than once.
        """

    def _allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        return aligned.zeros((nbytes,), np.uint8)

    def check_open(self) -> None:
        """Raise RunError if the channel is closed."""
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
