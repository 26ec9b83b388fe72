"""Received messages, from their arrival until the program consumes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from placer.channel import payload
from placer.channel.types import Array, Key, Piece

MESSAGE_COST = 64
"""Bytes that a message costs besides its payload, so that empty ones are bounded."""

Wait = Callable[[Callable[[], bool]], None]
"""Blocks until the predicate is true, which is called with the mailbox locked."""


@dataclass(eq=False, slots=True)
class Message:
    """A message of `source`, whose arrays have all arrived.

    It has `nbytes` of payload; `copied_nbytes` of them take credit of the source: all
    but those that are passed on without a copy between processes.

    A message may be in the mailbox as soon as its header has arrived; the methods of a
    subclass then wait for its payload. The thread that received it consumes it;
    `detach` may be called by any thread at any time.
    """

    source: str
    key: Key
    nbytes: int
    copied_nbytes: int
    arrays: list[Array]

    def collect(
        self, out: Sequence[Array | None] | None, what: Callable[[], str], wait: Wait
    ) -> list[Array]:
        """Return the arrays, written into those of `out` that fit.

        `what` names the message in errors; `wait` blocks for data that is still to
        come.
        """
        return payload.fill_out(out, self.arrays, what)

    def pieces(self, wait: Wait) -> Iterator[Piece]:
        """Return the arrays piece by piece; see `protocol.Channel.pieces`."""
        for i, array in enumerate(self.arrays):
            if array.size:
                yield i, 0, array.reshape(-1)

    def detach(self) -> None:
        """Copy the payload out of the transport's buffers, now and as more arrives.

        Called when the source may need the room before the program consumes this.
        """
