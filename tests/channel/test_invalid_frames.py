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
    beat,
    chunk,
    content,
    memory,
    message,
    packed,
    piece,
    raw,
    receive_sizes,
)

from placer.channel import link
from placer.channel.frames import (
    MAGIC,
    MAX_FRAME,
    Abort,
    Beat,
    Clear,
    Message,
    Piece,
    Status,
    Welcome,
    encode,
)
from placer.channel.interface import Aborted, Key
from placer.channel.peers import Doing
from placer.channel.pieces import PIECE
from placer.errors import RunError

CASES: dict[str, Callable[[], Sent]] = {
    "wrong magic": lambda: [b"PLT1" + BEAT[4:]],
    "too long": lambda: [raw(b"\x91", MAX_FRAME)],
    "an unknown kind": lambda: [packed("Header", 1)],
    "a second welcome": lambda: [encode(Welcome(bytes(32)))],
    "a payload that no frame has": lambda: [
        raw(BEAT[12:][: BEAT[4]], 64, magic=MAGIC) + bytes(64)
    ],
    "an invalid cause": lambda: [packed("Abort", "b:0", "", 5)],
    "an endless cause": lambda: [raw(b"\x92\xa5Abort\xdb\xff\xff\xff\xff")],
    "a cause of another length": lambda: [packed("Abort", "b:0", "")],
    "a text that is too long": lambda: [packed("Abort", "b:0", "", "x" * 8193)],
    "a text that is no text": lambda: [raw(b"\x94\xa5Abort\xa0\xa0\xa1\xff")],
    "an invalid status": lambda: [packed("Status", [["b:0", ""]])],
    "an endless status": lambda: [raw(b"\x92\xa6Status\xdd\xff\xff\xff\xff")],
    "a status of too many nodes": lambda: [packed("Status", [["b:0", "", 1.0]] * 17)],
    "a status of no node": lambda: [packed("Status", [])],
    "a status of another node": lambda: [encode(Status((Doing("c:0", "", 1.0),)))],
    "a message of another node": lambda: [
        packed("Message", 1, "c:0", "a:0", [1, 1, 0], b"\x90", []),
    ],
    "a message to another node": lambda: [
        packed("Message", 1, "b:0", "c:0", [1, 1, 0], b"\x90", []),
    ],
    "an invalid probe": lambda: [packed("Probe", 5, 1)],
    "a negative number": lambda: [packed("Beat", -1)],
    "no msgpack": lambda: [raw(b"\xc1")],
    "a missing number": lambda: [message(2, 5)],
    "a repeated number": lambda: [message(1, 5), message(1, 5)],
    "truncated types": lambda: [
        packed("Message", 1, "b:0", "a:0", [1, 1, 0], b"\x91"),
    ],
    "over the maximum": lambda: [message(1, HUGE + 1)],
    "a reference in no memory": lambda: [message(1, 5, (1, 0))],
    "memory without a file": lambda: [memory(1, 5000)],
    "a piece of no message": lambda: [piece(1, 0)],
    "a piece of an inline message": lambda: [message(1, 5), piece(1, 0, 64)],
    "a piece out of order": lambda: [message(1, LARGE), piece(1, 1)],
    "a piece twice": lambda: [message(1, LARGE), piece(1, 0), piece(1, 0)],
    "a piece too many": lambda: [message(1, LARGE), *(piece(1, i) for i in range(3))],
    "a piece that is too short": lambda: [message(1, LARGE), piece(1, 0, PIECE - 64)],
    "a piece that is too long": lambda: [
        message(1, LARGE),
        encode(Piece(1, 0, PIECE + 64)) + bytes(PIECE) + BEAT,
    ],
    "a piece that was not asked for": lambda: [
        message(1, HUGE),
        *(piece(1, i) for i in range(link.MAX_EAGER + 1)),
    ],
    "a chunk without a pool": lambda: [message(1, LARGE), chunk(1, 0, 0)],
    "a return of chunks without a pool": lambda: [beat(freed=1)],
}


@pytest.mark.parametrize("case", CASES)
def test_invalid_frames_end_the_run_and_name_the_node(played, spawn, case):
    channel, node = played
    sending = spawn(node.send, *CASES[case]())
    with pytest.raises(Aborted, match=r"^b:0: seen from a:0: sent an invalid frame: "):
        channel.receive("b:0", Key(2, 2))
    assert node.read_until(Abort) == Abort.of(channel.aborted)
    node.end()
    sending.result(10)


def test_valid_variants_of_the_invalid_frames_are_received(played, spawn):
    """Pieces of several messages, and other frames, may come between each other."""
    channel, node = played
    status = encode(Status((Doing("b:0", "", 1.0),)))
    sent = [message(1, 5), message(2, LARGE), piece(2, 0), message(3, 7), BEAT]
    sent += [message(4, HUGE), *(piece(4, i) for i in range(link.MAX_EAGER)), status]
    sending = spawn(node.send, *sent, piece(2, 1))
    receive_sizes(channel, 5, LARGE, 7)
    sending.result(10)
    pieces = channel.pieces("b:0", Key(1, 1))
    parts = [next(pieces)[2].tobytes()]
    while (answer := node.read_until(Beat)).message != 4:
        pass
    assert answer.pieces == HUGE // PIECE  # asked for now
    sending = spawn(node.send, piece(4, 4), piece(4, 5))
    parts += [view.tobytes() for _, _, view in pieces]
    assert b"".join(parts) == content(HUGE).tobytes()
    sending.result(10)


@pytest.mark.parametrize("sizes", [(1, 63, 64, 65, 1000), (70_000, 13), (1 << 20, 7)])
def test_frames_arrive_exactly_however_their_bytes_are_divided(played, spawn, sizes):
    channel, node = played
    last = content(1000, PIECE).tobytes() + bytes(24)
    parts = [message(1, 5), BEAT, message(2, 50_000), message(3, PIECE + 1000)]
    parts += [piece(3, 0), message(4, 7), encode(Piece(3, 1, 1024)) + last]
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
    node.send(message(1, HUGE), encode(Clear()))
    while (answer := node.read_until(Beat)).message != 1:
        assert answer.received == 0
    assert answer.pieces == HUGE // PIECE
    node.send(*(piece(1, i) for i in range(HUGE // PIECE)), message(2, HUGE))
    while (answer := node.read_until(Beat)).message != 2:  # also of a later one
        pass
    assert answer.received == 1
    node.send(*(piece(2, i) for i in range(HUGE // PIECE)), message(3, 5))
    while node.read_until(Beat).received != 3:
        pass
    receive_sizes(channel, HUGE, HUGE, 5)


# Answers to what is sent to it.


def test_acknowledgement_of_more_than_was_sent_ends_the_run(played):
    channel, node = played
    for step in (1, 2):
        channel.send("b:0", Key(1, step), [content(5)])
    node.send(beat(received=2), message(1, 5))
    receive_sizes(channel, 5)
    node.send(beat(received=3))
    with pytest.raises(Aborted, match="an acknowledgement of unsent messages"):
        channel.receive("b:0", Key(2, 2))


@pytest.mark.parametrize("limits", [{"deadline": 0.5}])
def test_credit_beyond_what_was_sent_is_ignored(alone):
    channel, connect = alone
    with connect() as node:
        node.join(window=1000)
        channel.join()
        channel.send("b:0", Key(1, 1), [content(900)])
        node.send(beat(credit=2**60), message(1, 5))
        receive_sizes(channel, 5)
        with pytest.raises(RunError, match=r"waited 0\.5 s for b:0 to receive"):
            channel.send("b:0", Key(1, 2), [content(900)])
        node.send(beat(credit=900 + 64), message(2, 5))
        receive_sizes(channel, 5)
        channel.send("b:0", Key(1, 2), [content(900)])
        node.leave()


def test_only_the_pieces_that_are_allowed_are_sent(played):
    channel, node = played
    channel.send("b:0", Key(1, 1), [content(HUGE)])
    channel.send("b:0", Key(1, 2), [])
    seen = []
    while not isinstance(frame := node.read_until(Piece, Message), Message) or (
        frame.number != 2
    ):
        seen.append(frame)
    assert isinstance(seen[0], Message)
    assert seen[0].number == 1
    assert [(each.message, each.index) for each in seen[1:]] == [
        (1, i) for i in range(link.MAX_EAGER)
    ]
    for index, allowed in ((4, 5), (5, 2**64 - 1)):
        node.send(beat(message=1, pieces=allowed))
        sent = node.read_until(Piece)
        assert (sent.message, sent.index) == (1, index)
    node.send(beat(message=7, pieces=5))  # of no message
