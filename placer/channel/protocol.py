"""What a channel between nodes promises, whatever carries it.

A node has one `Channel`. A message is a list of arrays, addressed by its source and a
`Key` (edge, step, microbatch); messages may be received in any order, and those of one
source and key come in the order they were sent.

**Memory.** `share` gives memory that a channel may pass on without a copy: over shared
memory a receiver then sees the sender's own bytes. Nobody is kept from writing to them:
what was written before `send` is seen after `receive`, and a sender may write there
again once it knows, by other messages, that every receiver is done.

**Bounds.** A message costs its payload bytes plus 64; what is passed on without a copy
between processes costs nothing. `send` waits while the messages that a peer has not yet
acknowledged would cost more than `bound`; a message larger than the bound goes when
nothing else is on its way to that peer. A message counts as acknowledged once the peer's
program has received it. So that the order of receives can never make a bound into a
deadlock, a node that waits for a message acknowledges those of the same source that
overtook it at once, and a node that has waited for anything for `beat` seconds
acknowledges all it holds, then again after twice that pause, and so on.

**Ends.** Every wait has a deadline and says whom it waited for. `abort` ends the run
everywhere with one root cause; `close` ends this node's part in good order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from placer.errors import RunError

Array = npt.NDArray[Any]
Piece = tuple[int, int, Array]
"""Part of a message: the index of an array, its first element here, a 1-D view."""

BOUND: Final = 64 << 20
MAX_MESSAGE: Final = 2 << 30
DEADLINE: Final = 600.0
BEAT: Final = 1.0


class Key(NamedTuple):
    """What a message is addressed by, beside its source.

    `edge` is the plan's number of the edge; below 0 are the runtime's own control
    messages. Each is a signed 64-bit integer.
    """

    edge: int
    step: int
    microbatch: int = 0

    def __str__(self) -> str:
        text = f"edge {self.edge}, step {self.step}"
        return f"{text}, microbatch {self.microbatch}" if self.microbatch else text


@dataclass(frozen=True, slots=True)
class Cause:
    """The root cause of a failed run: which node, where in it, what happened."""

    node: str
    where: str
    what: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.node, self.where, self.what) if part)


class Aborted(RunError):  # noqa: N818 - what happened to the run, not to the call
    """The run has ended with a root cause, here or on another node.

    `cause` says which.
    """

    def __init__(self, cause: Cause) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Channel(Protocol):
    """One node's end of the run's channels; its methods may be called from any thread.

    `bytes_sent` and `bytes_received` count payload bytes. `aborted` is the root cause
    once the run has failed. `on_abort`, when set, is called with the cause when a
    failure is learned from elsewhere (not for this node's own `abort`), from the thread
    that learned it: so that a process that is stuck outside the channel can be ended.
    """

    node: str
    on_abort: Callable[[Cause], None] | None

    @property
    def bytes_sent(self) -> int:
        """Payload bytes of all messages sent so far."""
        ...

    @property
    def bytes_received(self) -> int:
        """Payload bytes of all messages that have arrived so far."""
        ...

    @property
    def aborted(self) -> Cause | None:
        """Why the run failed, or None while it has not."""
        ...

    def join(self) -> None:
        """Wait until every peer is there; called once, before the first message.

        RunError names exactly who did not come.
        """
        ...

    def send(self, to: str, key: Key, arrays: Sequence[Array]) -> None:
        """Queue a message for node `to`; waits while the bound is exceeded.

        The arrays must not change until the message is delivered: what was computed
        from the message and came back proves that it was. Arrays that are not
        C-contiguous are copied here, and messages up to 64 KiB may be; others are not.
        RunError for a peer that is not in the run or has ended it, a message larger
        than `max_message` bytes (what is passed on without a copy between processes
        does not count), a dtype that no value of placer has, and a passed deadline;
        `Aborted` once the run has failed.
        """
        ...

    def receive(
        self, source: str, key: Key, *, out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Wait for the message `key` of `source` and return its arrays.

        `out[i]`, when given, is a writable C-contiguous array of the right dtype and
        shape that array i is written into and which is returned; others lie in the
        arena, 64-byte aligned, or are read-only views of the sender's arrays. Until
        this returns, and after it raised, `out` may be written to at any time.
        RunError when the deadline passes, when the source ended its run before it sent
        this, or when `out` does not fit; `Aborted` once the run has failed.
        """
        ...

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Receive the message `key` of `source` piece by piece, in order.

        Each piece is (index of the array, first element, 1-D view of elements from
        there on); together they are all elements of all arrays, empty arrays have
        none. A view may be read-only, is 64-byte aligned unless it is one of the
        sender's own array, and is valid until the next piece is asked for. Messages of
        the same dtypes and shapes come in the same pieces, and iterators of several
        sources may be open at once. Asking for the first piece takes the message; it
        counts as received when the iterator ends or is closed, which discards the rest.
        Errors are those of `receive`.
        """
        ...

    def listen(self, edge: int, call: Callable[[str], None]) -> None:
        """Call `call(source)` for each message of this edge that arrives from now on.

        It is called once the message can be received, in the thread that took the
        message in, so it must not wait for anything. One listener per edge.
        """
        ...

    def share(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Zeroed 64-byte aligned memory of this channel, to be sent from in place.

        An array that lies wholly in it, C-contiguous, goes to another process as a
        read-only view of the same memory where the carrier can (and where `out` has no
        array for it), else as any array does. It lasts as long as the channel, or
        the last view of it.
        """
        ...

    def abort(self, cause: Cause) -> None:
        """End the run for everybody with this root cause; the first cause stands.

        Every waiting and later call, here and on the peers, raises `Aborted`.
        """
        ...

    def waiting(self) -> tuple[str, ...]:
        """The peers that a `send` or `receive` of this node waits for right now."""
        ...

    def close(self) -> None:
        """End this node's part: deliver what was sent, take leave of the peers.

        Afterwards peers do not take this node's silence for death, and no thread and no
        socket of the channel is left; calls that still wait end with RunError. After a
        failure, peers that had not come yet get a moment to come and be told of it.
        Raises nothing for a run that failed meanwhile: `aborted` says so. May be called
        more than once.
        """
        ...
