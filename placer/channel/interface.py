"""The interface of a channel, and what is the same for every transport.

A node has one `Channel`. A message is a list of arrays, addressed by its source and a
`Key` (edge, step, microbatch). Messages may be received in any order; messages of one
source and one key arrive in the order in which they were sent.

**Memory.** `share` returns memory that a channel may pass on without a copy: over
shared memory a receiver sees the sender's own bytes. Nothing prevents writes to them: a
receiver sees what was written before `send`, and the sender may write there again once
it knows, from other messages, that every receiver has finished reading.

**Flow control.** A message costs its payload bytes plus 64; arrays that are passed on
without a copy between processes cost nothing. `send` waits while the messages to a peer
that its program has not received would cost more than `bound` bytes in total: see
docs/channel.md, which also says why that cannot become a deadlock.

**Ends.** Every wait has a deadline, and its error names the peer that was waited for.
`abort` ends the run on every node with one root cause; `close` ends this node's part in
good order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

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

    All methods may be called from any thread, also at the same time; `join` is called
    once. `node` is the name of this node.

    `on_abort`, which may be set, is called with the root cause when the failure of
    another node becomes known or a peer is lost (not for this node's own `abort`), in
    the thread that finds it: so that a process that is blocked outside the channel can
    be ended.

    `describe`, which may be set, returns what this node does, such as "step 5", for the
    errors of other nodes; it is called about once a second, from any thread.

    Args:
        node: the name of this node.
        mailbox: has its messages.
        carrier: sends them.
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
        """The root cause once the run has failed, else None."""
        return self.mailbox.aborted

    @abstractmethod
    def join(self) -> None:
        """Wait until every peer is connected; call it once, before the first message.

        Raises:
            RunError: peers did not connect in time (the message names each of them with
                its address), or a peer left meanwhile.
            Aborted: the run failed meanwhile.
        """

    def send(
        self, to: str, key: Key, arrays: Sequence[Array], *, follows: bool = False
    ) -> None:
        """Queue a message for a peer; wait while the bound is exceeded.

        Args:
            to: the name of the receiving node.
            key: the address of the message.
            arrays: the payload. The arrays must not change until the message has been
                delivered: something computed from the message that comes back proves
                that it has. Arrays that are not C-contiguous are copied here, messages
                up to 64 KiB may be, others are not.
            follows: whether the message is a part of what another one began, which was
                sent before: it then does not wait.

        Raises:
            RunError: the peer does not exist or has ended its run; the message is
                larger than `max_message` bytes (not counting what is passed on without
                a copy between processes); a dtype is not one that values can have; or
                the deadline passed.
            Aborted: the run has failed.
        """
        self.check_open()
        checked = payload.check_arrays(
            arrays, lambda: f"{key} from {self.node} to {to}"
        )
        self._carrier.transmit(self.node, to, key, checked, follows)

    def begin_send(self, to: str, key: Key, arrays: Sequence[Array]) -> OpenMessage:
        """Begin to send a message whose arrays are still being written.

        Where the payload is copied to a connection, parts of it leave as soon as they are
        written; else all of it leaves at the end.

        Args:
            to, key: as in `send`.
            arrays: the payload, C-contiguous. What is written must not change until the
                message has been delivered.

        Returns:
            The message. It must be ended, unless the run fails.

        Raises:
            RunError, Aborted: as `send`, here or from the end of the message.
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
            out: for each array, a writable C-contiguous array of the same dtype and
                shape to write it into, or None. Until this returns, and after it has
                raised, `out` may be written to at any time.

        Returns:
            The arrays, in the order sent: `out[i]` where it is given; else an array in
            the arena, 64-byte aligned, or a read-only view of the sender's array.

        Raises:
            RunError: the deadline passed, the source ended its run before it sent this
                message, or `out` does not fit.
            Aborted: the run has failed.
        """
        self.check_open()
        return self.mailbox.arrays(self.mailbox.claim(self.node, [(source, key)]), out)

    def expect(self, source: str, key: Key, out: Sequence[Array | None]) -> None:
        """Let a message arrive as it is sent, before the program receives it.

        Args:
            source: the name of the sending node.
            key: the address of the message.
            out: as in `receive`, which then is given the same; these arrays may be written
                to from now on.

        Raises RunError when there is no such peer.
        """
        self.check_open()
        self.mailbox.expect(self.node, source, key, out)

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Receive a message piece by piece, in order, as its data arrives.

        Asking for the first piece consumes the message. It counts as received when the
        iterator ends or is closed; closing it discards the rest. Iterators of several
        sources may be open at once; one iterator belongs to one thread.

        Args:
            source: the name of the sending node.
            key: the address of the message.

        Returns:
            An iterator of (index of the array, index of the first element, 1-D view of
            the elements from there on). Together the pieces are all elements of all
            arrays; empty arrays have none. A view may be read-only, is 64-byte aligned
            unless it is a view of the sender's own array, and is valid until the next
            piece is asked for. Messages of the same dtypes and shapes come in the same
            pieces.

        Raises:
            RunError, Aborted: as `receive`, from the iterator.
        """
        self.check_open()
        return self.mailbox.pieces(
            lambda: self.mailbox.claim(self.node, [(source, key)])
        )

    def pieces_of_first(
        self, addresses: Sequence[tuple[str, Key]]
    ) -> tuple[str, Key, Iterator[Piece]]:
        """Wait for whichever message comes first, and receive it piece by piece.

        Of several that have arrived, the first one is returned; a source that has sent
        more than one does not hold up the others.

        Args:
            addresses: the source and the key of each message, at least one.

        Returns:
            The source and the key of the message, and its pieces as `pieces` returns
            them.

        Raises:
            RunError: the deadline passed, or all sources ended their run before they
                sent this message.
            Aborted: the run has failed.
        """
        self.check_open()
        message = self.mailbox.claim(self.node, addresses)
        return message.source, message.key, self.mailbox.pieces(lambda: message)

    def listen(self, edge: int, call: Callable[[str], object]) -> None:
        """Call `call(source)` for each message of an edge that has arrived, and for each
        that arrives.

        The call comes once the message can be received: here, or in the thread that read
        it from the transport, so it must not wait for anything. An edge has one listener;
        a second one replaces the first.
        """
        self.mailbox.listen(self.node, edge, call)

    def watch_waits(self, watch: WatchWait) -> None:
        """Let every wait of this node be in a context of `watch`; see `Mailbox`."""
        self.mailbox.watch_waits(self.node, watch)

    def share(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return `nbytes` bytes of zeroed, 64-byte aligned memory to send from.

        An array that is wholly inside it and C-contiguous goes to another process as a
        read-only view of the same memory, where the transport can do that and `out` has
        no array for it; else it is sent like any other array. The memory lasts as long
        as the channel or the last view of it, whichever is longer.

        Raises RunError when the channel is closed or the system has too little memory.
        """
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
        return self._allocate(nbytes)

    @abstractmethod
    def abort(self, cause: Cause) -> None:
        """End the run on every node with a root cause; only the first one counts.

        Every waiting and later call, here and on the peers, raises `Aborted`. Does not
        wait.
        """

    @abstractmethod
    def streams(self) -> dict[str, str]:
        """Return how bytes go to each connected peer: "shared memory", "unix socket",
        "tls", "tcp" or "thread"."""

    def waiting(self) -> tuple[str, ...]:
        """Return the nodes that a call on this node waits for now, sorted."""
        return self.mailbox.waiting(self.node)

    @abstractmethod
    def close(self) -> None:
        """End this node's part: deliver what was sent, and say goodbye to the peers.

        Waits up to the deadline for delivery. Afterwards peers do not report this node
        as lost, and no thread and no socket of the channel is left. Calls that still
        wait raise RunError. After a failure nothing is delivered, but peers that have
        not connected yet get a few seconds to connect and learn the cause. Raises
        nothing for a run that fails meanwhile: `aborted` has the cause. May be called
        more than once.
        """

    def _allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return the memory for `share`."""
        return aligned.zeros((nbytes,), np.uint8)

    def check_open(self) -> None:
        """Raise RunError if the channel is closed."""
        if self._closed:
            raise RunError(f"{self.node}: the channel is closed")
