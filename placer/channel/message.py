"""Messages on the receiving side, until the program takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from placer.channel import payload
from placer.channel.protocol import Array, Key, Piece

MESSAGE_COST = 64
"""Bytes that a message counts for itself, so that empty ones are bounded as well."""

Wait = Callable[[Callable[[], bool]], None]
"""Waits until what it is given is true, which is asked with the mailbox locked."""


class Message(Protocol):
    """What has come from `source` under `key`: `nbytes` of payload, and its `cost`."""

    source: str
    key: Key
    nbytes: int
    cost: int

    def collect(
        self, out: Sequence[Array | None] | None, what: Callable[[], str], wait: Wait
    ) -> list[Array]:
        """The arrays, in those of `out` that fit; `what` names the message."""
        ...

    def pieces(self, wait: Wait) -> Iterator[Piece]:
        """The arrays piece by piece; see `protocol.Channel`."""
        ...

    def settle(self) -> None:
        """Put aside what has come: its source may need the room, now or later."""
        ...


@dataclass(eq=False, slots=True)
class Letter:
    """A message whose arrays are all here."""

    source: str
    key: Key
    arrays: list[Array]
    nbytes: int
    cost: int

    def collect(
        self, out: Sequence[Array | None] | None, what: Callable[[], str], wait: Wait
    ) -> list[Array]:
        """The arrays, copied into those of `out` that they do not lie in."""
        return payload.fill(out, self.arrays, what)

    def pieces(self, wait: Wait) -> Iterator[Piece]:
        """Each array whole."""
        for i, array in enumerate(self.arrays):
            if array.size:
                yield i, 0, array.reshape(-1)

    def settle(self) -> None:
        """Nothing is to be done: the arrays take no room of the carrier's."""


def letter(source: str, key: Key, arrays: list[Array]) -> Letter:
    """A message that was carried whole."""
    nbytes = sum(array.nbytes for array in arrays)
    return Letter(source, key, arrays, nbytes, nbytes + MESSAGE_COST)
