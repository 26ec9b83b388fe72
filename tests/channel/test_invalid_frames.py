"""Frames of a node: invalid ones end the run and name the node, valid ones arrive exactly.

Here are those that every transport has; `test_chunks` and `test_shared_memory` have the
others, and `test_frames` what their bodies may be.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from support.raw_frames import (
    BEAT,
    HUGE,
    LARGE,
    Sent,
    chunk,
    content,
    message,
    piece,
    receive_sizes,
)

from placer.channel import frame_bodies, frames, link
from placer.channel.frames import CLEAR, MAX_BODY, Kind, frame
from placer.channel.pieces import PIECE
from placer.channel.protocol import Aborted, Key
from placer.errors import RunError

CASES: dict[str, Callable[[], Sent]] = {
    "wrong magic": lambda: [b"PLT1" + BEAT[4:]],
    "too long": lambda: [frame(Kind.MESSAGE, 1, 0, 1, length=MAX_BODY + 64)],
    "a second hello": lambda: [frames.text_frame(Kind.HELLO, b"\x90")],
    "an invalid cause": lambda: [frames.text_frame(Kind.ABORT, b"\xc1")],
    "an endless cause": lambda: [
        frames.text_frame(Kind.ABORT, b"\xdd\xff\xff\xff\xff")
    ],
    "a cause of another length": lambda: [frame(Kind.ABORT, 65, length=64) + bytes(64)],
    "an invalid status": lambda: [frames.text_frame(Kind.STATUS, b"\xc1")],
    "an invalid probe": lambda: [frames.text_frame(Kind.PROBE, b"\xc1")],
    "a missing number": lambda: [message(2, 5)],
    "a repeated number": lambda: [message(1, 5), message(1, 5)],
    "truncated types": lambda: [
        frame(Kind.MESSAGE, 1, 0, 1, length=64) + b"\x91" + bytes(63)
    ],
    "over the maximum": lambda: [message(1, HUGE + 1)],
    "a reference in no memory": lambda: [message(1, 5, (1, 0))],
    "memory without a file": lambda: [frame(Kind.REGION, 1, 5000)],
    "a piece of no message": lambda: [piece(1, 0)],
    "a piece of an inline message": lambda: [message(1, 5), piece(1, 0, 64)],
    "a piece out of order": lambda: [message(1, LARGE), piece(1, 1)],
    "a piece twice": lambda: [message(1, LARGE), piece(1, 0), piece(1, 0)],
    "a piece too many": lambda: [message(1, LARGE), *(piece(1, i) for i in range(3))],
    "a piece that is too short": lambda: [message(1, LARGE), piece(1, 0, PIECE - 64)],
    "a piece that is too long": lambda: [
        message(1, LARGE),
        frame(Kind.PIECE, 1, 0, length=PIECE + 64) + bytes(PIECE) + BEAT,
    ],
    "a piece that was not asked for": lambda: [
        message(1, HUGE),
        *(piece(1, i) for i in range(link.MAX_EAGER + 1)),
    ],
    "a chunk without a pool": lambda: [message(1, LARGE), chunk(1, 0, 0)],
    "a return of chunks without a pool": lambda: [frame(Kind.BEAT, 0, 0, 0, 1)],
}


@pytest.mark.parametrize("case", CASES)
def test_invalid_frames_end_the_run_and_name_the_node(played, spawn, case):
    channel, node = played
    sending = spawn(node.send, *CASES[case]())
    with pytest.raises(Aborted, match=r"^b:0: seen from a:0: sent an invalid frame: "):
        channel.receive("b:0", Key(2, 2))
    _, body = node.read_until(Kind.ABORT)
    assert frame_bodies.read_cause(body) == channel.aborted
    node.end()
    sending.result(10)


def test_valid_variants_of_the_invalid_frames_are_received(played, spawn):
    """Pieces of several messages, and other frames, may come between each other."""
    channel, node = played
    status = frames.text_frame(Kind.STATUS, frame_bodies.encode([["b:0", "", 1.0]]))
    sent = [message(1, 5), message(2, LARGE), piece(2, 0), message(3, 7), BEAT]
    sent += [message(4, HUGE), *(piece(4, i) for i in range(link.MAX_EAGER)), status]
    sending = spawn(node.send, *sent, piece(2, 1))
    receive_sizes(channel, 5, LARGE, 7)
    sending.result(10)
    pieces = channel.pieces("b:0", Key(1, 1))
    parts = [next(pieces)[2].tobytes()]
    while (header := node.read_until(Kind.BEAT)[0]).e != 4:
        pass
    assert header.f == HUGE // PIECE  # asked for now
    sending = spawn(node.send, piece(4, 4), piece(4, 5))
    parts += [view.tobytes() for _, _, view in pieces]
    assert b"".join(parts) == content(HUGE).tobytes()
    sending.result(10)


@pytest.mark.parametrize("sizes", [(1, 63, 64, 65, 1000), (70_000, 13), (1 << 20, 7)])
def test_frames_arrive_exactly_however_their_bytes_are_divided(played, spawn, sizes):
    channel, node = played
    last = content(1000, PIECE).tobytes() + bytes(24)
    parts = [message(1, 5), BEAT, message(2, 50_000), message(3, PIECE + 1000)]
    parts += [piece(3, 0), message(4, 7), frame(Kind.PIECE, 3, 1, length=1024) + last]
    data = b"".join([*parts, message(5, 60_000)])
    ends = itertools.accumulate(itertools.cycle(sizes))
    divided, start = [], 0
    while start < len(data):
        end = next(ends)
        divided.append(data[start:end])
        start = end
    sending = spawn(node.send, *divided)
    receive_sizes(channel, 5, 50_000, PIECE + 1000, 7, 60_000)
    sending.result(10)


def test_node_that_wants_to_close_is_sent_for_all_of_its_messages(played):
    """They are acknowledged once they have arrived, not when they are received."""
    channel, node = played
    node.send(message(1, HUGE), frame(Kind.BEAT, flags=CLEAR))
    while (header := node.read_until(Kind.BEAT)[0]).e != 1:
        assert header.c == 0
    assert header.f == HUGE // PIECE
    node.send(*(piece(1, i) for i in range(HUGE // PIECE)), message(2, HUGE))
    while (header := node.read_until(Kind.BEAT)[0]).e != 2:  # also of a later one
        pass
    assert header.c == 1
    node.send(*(piece(2, i) for i in range(HUGE // PIECE)), message(3, 5))
    while node.read_until(Kind.BEAT)[0].c != 3:
        pass
    receive_sizes(channel, HUGE, HUGE, 5)


# Answers to what is sent to it.


def test_acknowledgement_of_more_than_was_sent_ends_the_run(played):
    channel, node = played
    for step in (1, 2):
        channel.send("b:0", Key(1, step), [content(5)])
    node.send(frame(Kind.BEAT, 0, 0, 2), message(1, 5))
    receive_sizes(channel, 5)
    node.send(frame(Kind.BEAT, 0, 0, 3))
    with pytest.raises(Aborted, match="an acknowledgement of what was not sent"):
        channel.receive("b:0", Key(2, 2))


@pytest.mark.parametrize("limits", [{"deadline": 0.5}])
def test_credit_beyond_what_was_sent_is_ignored(alone):
    channel, connect = alone
    with connect() as node:
        node.join(window=1000)
        channel.join()
        channel.send("b:0", Key(1, 1), [content(900)])
        node.send(frame(Kind.BEAT, 2**60), message(1, 5))
        receive_sizes(channel, 5)
        with pytest.raises(RunError, match=r"waited 0\.5 s for b:0 to receive"):
            channel.send("b:0", Key(1, 2), [content(900)])
        node.send(frame(Kind.BEAT, 900 + 64), message(2, 5))
        receive_sizes(channel, 5)
        channel.send("b:0", Key(1, 2), [content(900)])
        node.leave()


def test_only_the_pieces_that_are_allowed_are_sent(played):
    channel, node = played
    channel.send("b:0", Key(1, 1), [content(HUGE)])
    channel.send("b:0", Key(1, 2), [])
    seen = []
    while (header := node.read_until(Kind.PIECE, Kind.MESSAGE)[0]).a != 2:
        seen.append((header.kind, header.a, header.b))
    assert seen[0] == (Kind.MESSAGE, 1, 0)
    eager = range(link.MAX_EAGER)
    assert seen[1:] == [(Kind.PIECE, 1, i) for i in eager]
    for index, allowed in ((4, 5), (5, 2**64 - 1)):
        node.send(frame(Kind.BEAT, 0, 0, 0, 0, 1, allowed))
        header, _ = node.read_until(Kind.PIECE)
        assert (header.a, header.b) == (1, index)
    node.send(frame(Kind.BEAT, 0, 0, 0, 0, 7, 5))  # of no message
