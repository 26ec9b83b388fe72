"""Chunks of the pools, through which messages go on one machine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.free_addresses import exchange_messages
from support.own_resources import count_files
from support.raw_frames import (
    BEAT,
    HUGE,
    LARGE,
    POOL,
    Sent,
    beat,
    chunk,
    content,
    memory,
    message,
    piece,
    receive_sizes,
)
from support.raw_node import RawNode

from placer.channel import frames, link
from placer.channel.frames import Beat, Clear, Piece, encode
from placer.channel.interface import Aborted, Key
from placer.channel.pieces import PIECE
from placer.channel.pool import MAX_CHUNKS
from placer.channel.region import Region


@pytest.fixture
def transport() -> str:
    """Only nodes on one machine have pools."""
    return "shared"


def test_pools_are_allocated_when_they_are_needed(shared):
    before = count_files()
    channels = shared("a:0", "b:0")
    exchange_messages(channels, 3)
    used = count_files() - before
    assert used == 2 * 7  # each: listener, socket, two epolls and three eventfds
    channels["a:0"].send("b:0", Key(1, 1), [np.zeros(frames.INLINE + 1, np.uint8)])
    channels["b:0"].receive("a:0", Key(1, 1))
    assert count_files() - before > used


# Chunks of the node that is played.


@pytest.fixture
def pool(played) -> Region:
    """The pool of b:0, which a:0 has."""
    region = Region(0, POOL, "b:0")
    _, node = played
    node.send(region.fd, memory(0, POOL))  # which closes that
    return region


def put(pool: Region, at: int, index: int) -> None:
    """Write a piece of a message into a chunk."""
    pool.array[at * PIECE :][:PIECE] = content(PIECE, index * PIECE)


def read_freed(node: RawNode, expected: int) -> None:
    """Read until the chunks of a bit mask, and no others, have been returned."""
    freed = 0
    while freed != expected:
        answer = node.read_until(Beat)
        assert not freed & answer.freed
        freed |= answer.freed
        assert not freed & ~expected


CASES: dict[str, Callable[[], Sent]] = {
    "of no message": lambda: [chunk(1, 0, 0)],
    "outside the pool": lambda: [message(1, LARGE), chunk(1, 0, MAX_CHUNKS)],
    "in use": lambda: [message(1, LARGE), chunk(1, 0, 3), chunk(1, 1, 3)],
    "not asked for": lambda: [
        message(1, HUGE),
        *(chunk(1, i, i) for i in range(link.MAX_EAGER + 1)),
    ],
    "and a body": lambda: [
        message(1, LARGE),
        encode(Piece(1, 0, 64, chunk=0)) + BEAT,
    ],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("pool")
def test_invalid_chunks_end_the_run(played, case):
    channel, node = played
    node.send(*CASES[case]())
    with pytest.raises(Aborted, match=r"^b:0: seen from a:0: sent an invalid frame: "):
        channel.receive("b:0", Key(2, 2))


@pytest.mark.usefixtures("pool")
def test_chunk_cannot_be_filled_while_it_is_read(played):
    channel, node = played
    node.send(message(1, LARGE), chunk(1, 0, 3))
    pieces = channel.pieces("b:0", Key(1, 1))
    next(pieces)
    node.send(chunk(1, 1, 3))
    with pytest.raises(Aborted, match="sent an invalid frame: a chunk that is not"):
        channel.receive("b:0", Key(2, 2))
    pieces.close()


def test_chunks_and_bodies_of_several_messages_are_received(played, pool):
    channel, node = played
    for at, index in ((3, 0), (0, 1), (5, 1)):
        put(pool, at, index)
    node.send(message(1, LARGE), message(2, LARGE), chunk(1, 0, 3), piece(2, 0))
    node.send(BEAT, chunk(1, 1, 0), chunk(2, 1, 5))
    receive_sizes(channel, LARGE)
    read_freed(node, 0b1001)
    receive_sizes(channel, LARGE)
    read_freed(node, 0b100000)


@pytest.mark.parametrize("end", [False, True])
def test_node_that_needs_its_pool_or_ends_gets_back_what_nobody_receives(
    played, pool, end
):
    channel, node = played
    put(pool, 3, 0)
    put(pool, 5, 1)
    node.send(message(1, LARGE), chunk(1, 0, 3), chunk(1, 1, 5))
    if end:
        node.send(encode(Clear()))
    else:
        node.send(message(2, LARGE), piece(2, 0))
    read_freed(node, 1 << 3 | 1 << 5)
    pool.array[...] = 255
    receive_sizes(channel, LARGE)


def test_node_that_needs_its_pool_does_not_get_back_the_chunk_in_use(played, pool):
    channel, node = played
    for index in range(4):
        put(pool, index, index)
    node.send(message(1, HUGE), *(chunk(1, i, i) for i in range(4)))
    pieces = channel.pieces("b:0", Key(1, 1))
    _, _, view = next(pieces)
    node.send(message(2, LARGE), piece(2, 0))
    read_freed(node, 0b1110)
    pool.array[PIECE:] = 255
    put(pool, 1, 4)
    put(pool, 2, 5)
    node.send(chunk(1, 4, 1), chunk(1, 5, 2))
    got = view.tobytes() + b"".join(view.tobytes() for _, _, view in pieces)
    assert got == content(HUGE).tobytes()
    read_freed(node, 0b111)


# Chunks that are sent to it.


def read_chunks(node: RawNode, count: int) -> list[tuple[int, int, int | None]]:
    """Return message, index and chunk of the next pieces."""
    pieces: list[tuple[int, int, int | None]] = []
    while len(pieces) < count:
        frame = node.read_until(Piece)
        pieces.append((frame.message, frame.index, frame.chunk))
    return pieces


def test_return_of_a_chunk_twice_ends_the_run(played):
    channel, node = played
    channel.send("b:0", Key(1, 1), [content(LARGE)])
    (_, _, first), _ = read_chunks(node, 2)
    node.send(beat(freed=1 << first), message(1, 5))
    receive_sizes(channel, 5)
    node.send(beat(freed=1 << first))
    with pytest.raises(Aborted, match="returned chunks that were not filled"):
        channel.receive("b:0", Key(2, 2))


def test_message_without_free_chunks_goes_over_the_connection(played):
    channel, node = played
    for step in range(3):
        channel.send("b:0", Key(1, step), [content(4 * PIECE)])
    used = read_chunks(node, MAX_CHUNKS)
    assert [each[:2] for each in used] == [(n, i) for n in (1, 2) for i in range(4)]
    assert {at for _, _, at in used} == set(range(MAX_CHUNKS))
    assert read_chunks(node, 4) == [(3, i, None) for i in range(4)]
    node.send(beat(freed=1 << 6), message(1, 5))
    receive_sizes(channel, 5)
    channel.send("b:0", Key(1, 3), [content(PIECE)])
    assert read_chunks(node, 1) == [(4, 0, 6)]


@pytest.mark.parametrize("limits", [{}])
def test_message_that_fills_all_chunks_itself_waits_for_one(played):
    channel, node = played
    channel.send("b:0", Key(1, 1), [content((MAX_CHUNKS + 1) * PIECE)])
    read_chunks(node, link.MAX_EAGER)
    node.send(beat(message=1, pieces=MAX_CHUNKS + 1))
    used = read_chunks(node, MAX_CHUNKS - link.MAX_EAGER)
    assert None not in [at for _, _, at in used]
    node.send(beat(freed=1 << 2))
    assert read_chunks(node, 1) == [(1, MAX_CHUNKS, 2)]


def test_a_thread_that_sends_looks_again_once_others_may_send(
    shared, spawn, monkeypatch
):
    """Another one that has a piece to send while it holds the lock leaves that to it."""
    channels = shared("a:0", "b:0", lost_after=600.0, deadline=5)
    link = channels["a:0"].links["b:0"]
    next_message, sent = link._next_message, []

    def send_another() -> None:
        channels["a:0"].send("b:0", Key(1, 2), [content(LARGE)])

    def last_look():
        message = next_message()
        if message is None and link._advance_lock.locked() and not sent:
            sent.append(spawn(send_another))
            sent[0].result(5)
        return message

    monkeypatch.setattr(link, "_next_message", last_look)
    channels["a:0"].send("b:0", Key(1, 1), [content(LARGE)])
    assert sent
    assert not link._outgoing
    for step in (1, 2):
        (got,) = channels["b:0"].receive("a:0", Key(1, step))
        assert np.array_equal(got, content(LARGE))
