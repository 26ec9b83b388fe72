"""Records the messages that pass through a channel, and the waits for messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any, Final, cast

from placer.channel.interface import Array, Channel, Key, Piece
from placer.channel.open_message import OpenMessage
from placer.runtime.timeline.message_names import MessageNames
from placer.runtime.timeline.recorder import (
    RECEIVE,
    RECEIVED,
    SEND,
    SENT,
    WAIT,
    WAITED,
    Message,
    Recorder,
    now,
)

SHORTEST_WAIT: Final = 5_000
"""The shortest recorded wait in nanoseconds. Shorter waits only checked for a message."""


def traced_channel(
    channel: Channel, recorder: Recorder, names: MessageNames
) -> Channel:
    """Return a recording channel for a node's program, and record waits of all threads."""
    arrival = _Arrival()
    channel.watch_waits(partial(_traced_wait, recorder, arrival))
    return cast(Channel, TracedChannel(channel, recorder, names, arrival))


class _Arrival(threading.local):
    """The time when the message that this thread receives began to arrive.

    It is the end of the first wait. Every receive waits at least once.
    """

    time: int | None = None


class TracedChannel:
    """A channel that records its messages and otherwise behaves like the wrapped channel.

    The slice of a received message begins after the wait. It therefore never begins before
    the sending slice, and arrows in viewers point forward in time.
    """

    def __init__(
        self,
        channel: Channel,
        recorder: Recorder,
        names: MessageNames,
        arrival: _Arrival,
    ) -> None:
        self._channel, self._recorder, self._names = channel, recorder, names
        self._arrival = arrival

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def send(
        self, to: str, key: Key, arrays: Sequence[Array], *, follows: bool = False
    ) -> None:
        """Send a message; see `Channel`."""
        if not self._recorder.active:
            self._channel.send(to, key, arrays, follows=follows)
            return
        with self._sending(to, key, arrays):
            self._channel.send(to, key, arrays, follows=follows)

    def begin_send(self, to: str, key: Key, arrays: Sequence[Array]) -> OpenMessage:
        """Begin to send a message; see `Channel`. The slice covers only this call."""
        if not self._recorder.active:
            return self._channel.begin_send(to, key, arrays)
        with self._sending(to, key, arrays):
            return self._channel.begin_send(to, key, arrays)

    def receive(
        self, source: str, key: Key, *, out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Receive a message; see `Channel`."""
        self._arrival.time = None
        arrays = self._channel.receive(source, key, out=out)
        self._received(source, key, arrays, sum(array.nbytes for array in arrays))
        return arrays

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Receive a message piece by piece; see `Channel`.

        The slice ends with the first piece, because the program does other work between
        the pieces.
        """
        pieces = self._channel.pieces(source, key)
        if not self._recorder.active:
            return pieces
        return self._traced_pieces(source, key, pieces)

    def _traced_pieces(
        self, source: str, key: Key, pieces: Iterator[Piece]
    ) -> Iterator[Piece]:
        with closing(cast(Any, pieces)):
            self._arrival.time = None
            first = next(pieces, None)
            self._received(source, key, _array_of(first))
            if first is not None:
                yield first
                yield from pieces

    def pieces_of_first(
        self, addresses: Sequence[tuple[str, Key]]
    ) -> tuple[str, Key, Iterator[Piece]]:
        """Receive the first message to arrive, piece by piece; see `Channel`."""
        self._arrival.time = None
        source, key, pieces = self._channel.pieces_of_first(addresses)
        if not self._recorder.active:
            return source, key, pieces
        first = next(pieces, None)
        self._received(source, key, _array_of(first))
        return source, key, _continued(first, pieces)

    def _sending(
        self, to: str, key: Key, arrays: Sequence[Array]
    ) -> AbstractContextManager[None]:
        named = self._names.of(key, arrays[0] if arrays else None)
        nbytes = sum(array.nbytes for array in arrays)
        message = Message(SENT, to, key, nbytes, " ".join(named.values))
        return self._recorder.slice(SEND, f"{named.name} to {to}", message)

    def _received(
        self, source: str, key: Key, arrays: Sequence[Array], nbytes: int = 0
    ) -> None:
        start = self._arrival.time
        assert start is not None, key
        if not self._recorder.active:
            return
        named = self._names.of(key, arrays[0] if arrays else None)
        message = Message(RECEIVED, source, key, nbytes, " ".join(named.values))
        name = f"{named.name} from {source}"
        self._recorder.add(RECEIVE, name, start, now(), message)


def _array_of(piece: Piece | None) -> Sequence[Array]:
    return () if piece is None else (piece[2],)


def _continued(first: Piece | None, pieces: Iterator[Piece]) -> Iterator[Piece]:
    with closing(cast(Any, pieces)):
        if first is not None:
            yield first
            yield from pieces


@contextmanager
def _traced_wait(
    recorder: Recorder,
    arrival: _Arrival,
    nodes: tuple[str, ...],
    key: Key,
    sending: bool,
) -> Iterator[None]:
    """Return a context manager that records a wait of a mailbox.

    Other threads than the program's, such as the thread for metrics, also wait for internal
    messages. Such waits are not recorded.
    """
    start = now()
    try:
        yield
    finally:
        end = now()
        if arrival.time is None:
            arrival.time = end
        if end - start >= SHORTEST_WAIT and (key.edge > 0 or recorder.is_program):
            who = nodes[0] if len(nodes) == 1 else f"any of {len(nodes)} nodes"
            what = f"wait until {who} receives" if sending else f"wait for {who}"
            message = Message(WAITED, " ".join(nodes), key)
            recorder.add(WAIT, what, start, end, message)
