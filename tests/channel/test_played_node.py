"""Frames of a node that the test plays, over a unix socket and over TCP.

`test_strangers` has those that only a node over a unix socket can send.
"""

from __future__ import annotations

import gc
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.free_addresses import eventually, exchange_messages, free_addresses
from support.raw_node import RawNode

from placer.channel import frame_bodies, frames, joining, link
from placer.channel.frame_socket import MAX_FILES, MAX_HELLO
from placer.channel.frames import CLEAR, MAX_BODY, STARVED, Kind, frame
from placer.channel.pieces import PIECE
from placer.channel.pool import MAX_CHUNKS
from placer.channel.protocol import Aborted, Cause, Key
from placer.channel.region import Region
from placer.channel.session import Session
from placer.errors import RunError

POOL = MAX_CHUNKS * PIECE
LARGE = 2 * PIECE
HUGE = 6 * PIECE
"""Bytes of messages: of two pieces, and of more than are sent unasked."""
BEAT = frame(Kind.BEAT)


@pytest.fixture(params=["shared", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    """The transports over which a test can send frames, in turn."""
    return str(request.param)


def count_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


# Connections of others.


@pytest.fixture
def stranger(between, transport, make):
    """Channels a:0 and b:0, and a function that connects to a:0 as another process,
    which is refused."""
    addresses = free_addresses(["a:0", "b:0"])
    channels = between("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))
    before = channels["a:0"].refused
    key = make.keywords.get("key")
    yield channels, lambda: RawNode(transport, addresses, key)
    assert channels["a:0"].refused > before
    exchange_messages(channels, 1)


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\n\r\n", frame(Kind.HELLO)[:63]]
)
def test_connection_that_ends_before_its_hello_is_refused(stranger, sent):
    _, connect = stranger
    with connect() as node:
        node.send(sent)
        node.finish()
        node.read_rest()


@pytest.mark.parametrize(
    "sent",
    [
        frame(Kind.HELLO, 5, length=MAX_HELLO + 64),
        frames.text_frame(Kind.HELLO, b"\x91" * MAX_HELLO),
        frame(Kind.HELLO, 65, length=64) + bytes(64),
        frame(Kind.MESSAGE, 1, 0, 1, length=64) + b"\x90" + bytes(63),
        frame(Kind.REGION, 1, 5000),
        frame(Kind.PIECE, 1, length=64) + bytes(64),
    ],
)
def test_first_frame_that_is_no_hello_of_a_usual_length_is_refused(stranger, sent):
    _, connect = stranger
    with connect() as node:
        node.send(sent)
        node.read_rest()


def test_silent_connection_is_refused(stranger, monkeypatch):
    monkeypatch.setattr(joining, "HELLO_TIMEOUT", 0.01)
    _, connect = stranger
    with connect() as node:
        node.read_rest()


@pytest.mark.parametrize("transport", ["shared"])
def test_second_connection_of_a_node_on_this_machine_is_refused(stranger):
    channels, connect = stranger
    with connect() as node:
        same = channels["b:0"]._incarnation
        node.send(node.hello(node.welcome(), incarnation=same))
        assert node.read()[0].kind is Kind.REFUSED


@pytest.mark.parametrize("transport", ["tcp"])
@pytest.mark.parametrize("mac", [b"", b"m" * 32, b"m" * 1000])
def test_hello_without_the_key_is_refused(stranger, mac):
    _, connect = stranger
    with connect() as node:
        node.send(node.hello(node.welcome(), mac=mac))
        assert node.read()[1] == b"it has another key"


@pytest.mark.parametrize("transport", ["tcp"])
def test_hello_for_another_connection_is_refused(stranger):
    _, connect = stranger
    with connect() as first, connect() as second:
        second.welcome()
        second.send(second.hello(first.welcome()))
        assert second.read()[1] == b"it has another key"


@pytest.mark.parametrize("transport", ["tls"])
@pytest.mark.parametrize("sent", [BEAT, bytes(1000), b"\x16\x03\x01\xff\xff" * 20])
def test_bytes_that_are_not_encrypted_are_refused(stranger, sent):
    _, connect = stranger
    with connect() as node:
        node.send(sent)
        node.finish()
        node.read_rest()


@pytest.mark.parametrize("transport", ["shared"])
@pytest.mark.parametrize("count", [1, MAX_FILES + 1])
def test_files_of_a_stranger_are_closed(stranger, count):
    _, connect = stranger
    before = count_files()
    with connect() as node:
        data = node.hello(node.welcome(), job="another")
        for i in range(count):
            node.send(os.memfd_create("placer"), data[i : i + 1])
        node.send(data[count:])
        node.read_rest()
    assert count_files() == before


# Connections that are not established yet.


@pytest.fixture
def alone(make, transport) -> Iterator[tuple[Session, Callable[[], RawNode]]]:
    """The channel of a:0, without b:0, and a function that connects as b:0."""
    addresses = free_addresses(["a:0", "b:0"])
    channel = make("a:0", addresses, "test job")
    yield channel, lambda: RawNode(transport, addresses, make.keywords.get("key"))
    channel.close()


def test_connection_that_ends_after_the_answer_is_not_a_peer(alone):
    """As one that a node made and closed while the other node was stopped."""
    a, connect = alone
    for refused in (1, 2):
        with connect() as node:
            node.greet()
            node.finish()
            node.read_rest()
        assert a.refused == refused
    assert not a.links
    with connect() as node:
        node.join()
        a.join()
        node.send(frame(Kind.GOODBYE))
        a.close()


def test_answered_connection_has_no_timeout(alone, monkeypatch):
    """The node may be stopped then, and may consider itself connected."""
    a, connect = alone
    with connect() as node:
        node.greet()
        with connect() as second:
            second.send(second.hello(second.welcome()))
            assert second.read()[0].kind is Kind.REFUSED  # b:0 has a connection
        monkeypatch.setattr(joining, "HELLO_TIMEOUT", 0.01)
        with connect() as silent:
            silent.read_rest()  # its timeout has passed
        assert not a.links
        node.send(BEAT)
        a.join()
        node.send(frame(Kind.GOODBYE))
        a.close()


def test_frame_other_than_a_beat_after_the_answer_is_refused(alone):
    a, connect = alone
    forged = frames.text_frame(Kind.ABORT, frame_bodies.encode(["b:0", "", "x"]))
    for sent in (frame(Kind.GOODBYE), message(1, 5), forged):
        before = a.refused
        with connect() as node:
            node.greet()
            node.send(sent)
            node.read_rest()
        assert a.refused == before + 1
    assert not a.links
    assert a.aborted is None


def test_answered_connection_receives_the_last_frame(alone, monkeypatch):
    monkeypatch.setattr("placer.channel.session.LATE_JOIN_WAIT", 0.01)
    a, connect = alone
    cause = Cause("a:0", "start", "no such file")
    with connect() as node:
        node.greet()
        a.abort(cause)
        a.close()
        header, body = node.read()
        assert (header.kind, frame_bodies.read_cause(body)) == (Kind.ABORT, cause)
        assert node.read_rest() == b""


# Frames of a node.


@pytest.fixture
def played(make, transport) -> Iterator[list[Any]]:
    """The joined channel of a:0, and the connection of b:0, which the test plays."""
    addresses = free_addresses(["a:0", "b:0"])
    before = count_files()
    channel = make("a:0", addresses, "test job", max_message=HUGE, deadline=5)
    with RawNode(transport, addresses, make.keywords.get("key")) as node:
        node.join()
        channel.join()
        both = [channel, node]
        yield both
        channel.abort(Cause("a:0", "", "the test ends"))
        node.end()
        channel.close()
        both.clear()
        del channel  # and its memory
    assert count_files() == before


Sent = list[bytes | int]
"""Frames, and file descriptors that go with the next frame."""


def content(nbytes: int) -> np.ndarray[Any, Any]:
    return (np.arange(nbytes) % 251).astype(np.uint8)


def message(
    number: int, nbytes: int, reference: tuple[int, int] | None = None
) -> bytes:
    """Return the MESSAGE of one array of bytes, inline if it is small."""
    arrays = [content(nbytes)]
    references = {} if reference is None else {0: reference}
    contents = frames.describe_arrays(Key(1, 1), arrays, references)
    return frames.message_frame(number, contents, arrays)


def piece(number: int, index: int, nbytes: int = PIECE) -> bytes:
    """Return a piece of such a message."""
    body = (
        np.resize(content(HUGE)[index * PIECE :], nbytes).tobytes() if nbytes else b""
    )
    return frame(Kind.PIECE, number, index, length=nbytes) + body


def chunk(number: int, index: int, at: int) -> bytes:
    """Return a piece that is in a chunk of the pool."""
    return frame(Kind.PIECE, number, index, at + 1)


def resized(data: bytes, change: int) -> bytes:
    """Return a frame with a body that is longer or shorter, as its header says."""
    fields = [*frames.HEADER.unpack_from(data)]
    fields[4] += change
    body = data[64 : 64 + fields[4]] + bytes(max(0, change))
    return frames.HEADER.pack(*fields) + body


NO_ARRAYS = b"\x90" + bytes(63)
CASES: dict[str, Callable[[], Sent]] = {
    "wrong magic": lambda: [b"PLT1" + BEAT[4:]],
    "unknown kind": lambda: [BEAT[:4] + b"\x63" + BEAT[5:]],
    "a length of no body": lambda: [frame(Kind.ABORT, 5, length=63)],
    "too long": lambda: [frame(Kind.MESSAGE, 1, 0, 1, length=MAX_BODY + 64)],
    "a second hello": lambda: [frames.text_frame(Kind.HELLO, b"\x90")],
    "an invalid cause": lambda: [frames.text_frame(Kind.ABORT, b"\xc1")],
    "an endless cause": lambda: [
        frames.text_frame(Kind.ABORT, b"\xdd\xff\xff\xff\xff")
    ],
    "a cause of another length": lambda: [frame(Kind.ABORT, 65, length=64) + bytes(64)],
    "an invalid status": lambda: [frames.text_frame(Kind.STATUS, b"\xc1")],
    "a missing number": lambda: [message(2, 5)],
    "a repeated number": lambda: [message(1, 5), message(1, 5)],
    "no types": lambda: [frame(Kind.MESSAGE, 1, 0, 0)],
    "endless types": lambda: [frame(Kind.MESSAGE, 1, 0, 2**63, length=64) + bytes(64)],
    "truncated types": lambda: [
        frame(Kind.MESSAGE, 1, 0, 1, length=64) + b"\x91" + bytes(63)
    ],
    "less payload": lambda: [resized(message(1, 5), -64)],
    "more payload": lambda: [resized(message(1, 5), 64)],
    "payload before the pieces": lambda: [resized(message(1, LARGE), 64)],
    "over the maximum": lambda: [message(1, HUGE + 1)],
    "too many references": lambda: [
        frame(Kind.MESSAGE, 1, 2**64 - 1, 1, length=64) + NO_ARRAYS
    ],
    "a reference of no array": lambda: [
        frame(Kind.MESSAGE, 1, 1, 1, length=64) + NO_ARRAYS
    ],
    "a reference in no memory": lambda: [message(1, 5, (1, 0))],
    "memory without a file": lambda: [frame(Kind.REGION, 1, 5000)],
    "a piece of no message": lambda: [piece(1, 0)],
    "a piece of an inline message": lambda: [message(1, 5), piece(1, 0, 64)],
    "a piece of another message": lambda: [message(1, LARGE), piece(2, 0)],
    "a piece out of order": lambda: [message(1, LARGE), piece(1, 1)],
    "a piece twice": lambda: [message(1, LARGE), piece(1, 0), piece(1, 0)],
    "a piece too many": lambda: [message(1, LARGE), *(piece(1, i) for i in range(3))],
    "a piece that is too short": lambda: [message(1, LARGE), piece(1, 0, PIECE - 64)],
    "a piece that is too long": lambda: [message(1, LARGE), piece(1, 0, PIECE + 64)],
    "an empty piece": lambda: [message(1, LARGE), piece(1, 0, 0)],
    "a piece that was not asked for": lambda: [
        message(1, HUGE),
        *(piece(1, i) for i in range(link.MAX_EAGER + 1)),
    ],
    "a chunk without a pool": lambda: [message(1, LARGE), chunk(1, 0, 0)],
    "a return of chunks without a pool": lambda: [frame(Kind.BEAT, 0, 0, 0, 1)],
    "an acknowledgement of what was not sent": lambda: [frame(Kind.BEAT, 0, 0, 1)],
}


@pytest.mark.parametrize("case", CASES)
def test_invalid_frames_end_the_run_and_name_the_node(played, spawn, case):
    channel, node = played
    sending = spawn(node.send, *CASES[case]())
    with pytest.raises(Aborted, match=r"^b:0: seen from a:0: sent an invalid frame: "):
        channel.receive("b:0", Key(2, 2))
    _, body = node.read_until(Kind.ABORT)
    assert frame_bodies.read_cause(body) == channel.aborted
    closing = spawn(channel.close)  # which drops what it has not read
    sending.result(10)
    node.end()
    closing.result(10)


def receive_sizes(channel: Session, *sizes: int) -> None:
    """Receive messages of these sizes, with the usual content."""
    for nbytes in sizes:
        (got,) = channel.receive("b:0", Key(1, 1))
        assert np.array_equal(got, content(nbytes))


def test_valid_variants_of_the_invalid_frames_are_received(played):
    """Pieces of several messages, and other frames, may come between each other."""
    channel, node = played
    node.send(message(1, 5), message(2, LARGE), piece(2, 0), message(3, 7), BEAT)
    status = frames.text_frame(Kind.STATUS, frame_bodies.encode([["b:0", "", 1.0]]))
    node.send(message(4, HUGE), piece(4, 0), piece(2, 1), status)
    node.send(*(piece(4, i) for i in range(1, link.MAX_EAGER)))
    receive_sizes(channel, 5, LARGE, 7)
    pieces = channel.pieces("b:0", Key(1, 1))
    parts = [next(pieces)[2].tobytes()]
    while (header := node.read_until(Kind.BEAT)[0]).e != 4:
        pass
    assert header.f == HUGE // PIECE  # asked for now
    node.send(piece(4, 4), piece(4, 5))
    parts += [view.tobytes() for _, _, view in pieces]
    assert b"".join(parts) == content(HUGE).tobytes()


@pytest.mark.parametrize("sizes", [(1, 63, 64, 65, 1000), (70_000, 13), (1 << 20, 7)])
def test_frames_arrive_exactly_however_their_bytes_are_divided(played, spawn, sizes):
    channel, node = played
    last = content(PIECE + 1000)[PIECE:].tobytes() + bytes(24)
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
    node.send(*(piece(1, i) for i in range(HUGE // PIECE)), message(2, LARGE))
    while node.read_until(Kind.BEAT)[0].c != 1:
        pass
    node.send(piece(2, 0), piece(2, 1), message(3, 5))  # also those that come later
    while node.read_until(Kind.BEAT)[0].c != 3:
        pass
    receive_sizes(channel, HUGE, LARGE, 5)


# Chunks of the pool of the node that is played.


def open_pool(node: RawNode) -> Region:
    """Return the pool of b:0, which a:0 has from now on."""
    region = Region(0, POOL, "b:0")
    node.send(region.fd, frame(Kind.REGION, 0, POOL))  # which closes that
    return region


def put(pool: Region, at: int, index: int) -> None:
    """Write a piece of a message into a chunk."""
    pool.array[at * PIECE :][:PIECE] = content(HUGE)[index * PIECE :][:PIECE]


def read_freed(node: RawNode, expected: int) -> None:
    """Read until the chunks of a bit mask, and no others, have been returned."""
    freed = 0
    while freed != expected:
        header, _ = node.read_until(Kind.BEAT)
        assert not freed & header.d
        freed |= header.d
        assert not freed & ~expected


@pytest.mark.parametrize("transport", ["shared"])
@pytest.mark.parametrize(
    "sent",
    [
        [chunk(1, 0, 0)],
        [message(1, LARGE), chunk(2, 0, 0)],
        [message(1, LARGE), chunk(1, 1, 0)],
        [message(1, LARGE), chunk(1, 0, MAX_CHUNKS)],
        [message(1, LARGE), chunk(1, 0, 2**64 - 2)],
        [message(1, LARGE), chunk(1, 0, 3), chunk(1, 1, 3)],
        [message(1, HUGE), *(chunk(1, i, i) for i in range(link.MAX_EAGER + 1))],
        [message(1, LARGE), frame(Kind.PIECE, 1, 0, 1, length=64) + BEAT],
    ],
    ids=[
        "of no message",
        "of another message",
        "out of order",
        "outside the pool",
        "far outside the pool",
        "in use",
        "not asked for",
        "and a body",
    ],
)
def test_invalid_chunks_end_the_run(played, sent):
    channel, node = played
    open_pool(node)
    node.send(*sent)
    with pytest.raises(Aborted, match=r"^b:0: seen from a:0: sent an invalid frame: "):
        channel.receive("b:0", Key(2, 2))


@pytest.mark.parametrize("transport", ["shared"])
def test_chunks_and_bodies_are_received_in_one_message(played):
    channel, node = played
    pool = open_pool(node)
    put(pool, 3, 0)
    put(pool, 0, 1)
    node.send(message(1, LARGE), chunk(1, 0, 3), BEAT, chunk(1, 1, 0))
    receive_sizes(channel, LARGE)
    read_freed(node, 0b1001)
    put(pool, 3, 1)
    node.send(message(2, LARGE), piece(2, 0), chunk(2, 1, 3))
    receive_sizes(channel, LARGE)
    read_freed(node, 0b1000)


@pytest.mark.parametrize("transport", ["shared"])
def test_starving_node_gets_back_the_chunks_of_messages_that_nobody_receives(played):
    channel, node = played
    pool = open_pool(node)
    put(pool, 3, 0)
    put(pool, 5, 1)
    node.send(message(1, LARGE), chunk(1, 0, 3), chunk(1, 1, 5))
    node.send(frame(Kind.BEAT, flags=STARVED))
    read_freed(node, 1 << 3 | 1 << 5)
    pool.array[...] = 255
    receive_sizes(channel, LARGE)


@pytest.mark.parametrize("transport", ["shared"])
def test_starving_node_does_not_get_back_the_chunk_that_is_in_use(played):
    channel, node = played
    pool = open_pool(node)
    for index in range(4):
        put(pool, index, index)
    node.send(message(1, HUGE), *(chunk(1, i, i) for i in range(4)))
    pieces = channel.pieces("b:0", Key(1, 1))
    _, _, view = next(pieces)
    node.send(frame(Kind.BEAT, flags=STARVED))
    read_freed(node, 0b1110)
    pool.array[PIECE:] = 255
    put(pool, 1, 4)
    put(pool, 2, 5)
    node.send(chunk(1, 4, 1), chunk(1, 5, 2))
    got = view.tobytes() + b"".join(view.tobytes() for _, _, view in pieces)
    assert got == content(HUGE).tobytes()
    read_freed(node, 0b111)


@pytest.mark.parametrize("transport", ["shared"])
def test_too_many_regions_end_the_run(played, monkeypatch):
    monkeypatch.setattr(link, "MAX_REGIONS", 2)
    channel, node = played
    regions = [Region(number, 5000, "b:0") for number in (1, 2, 3)]
    for region in regions:
        node.send(os.dup(region.fd), frame(Kind.REGION, region.number, region.nbytes))
        region.close()
    with pytest.raises(Aborted, match="sent an invalid frame: region"):
        channel.receive("b:0", Key(2, 2))


@pytest.mark.parametrize("transport", ["shared"])
def test_files_that_no_frame_brings_are_bounded_and_closed(played):
    channel, node = played
    before = count_files()
    for number in range(1, MAX_FILES // 2 + 1):
        file = os.memfd_create("placer")
        socket.send_fds(node.connection, [message(number, 5)], [file] * 100)
        os.close(file)
        receive_sizes(channel, 5)
    assert count_files() <= before + MAX_FILES
    node.send(os.memfd_create("placer"), BEAT)
    with pytest.raises(Aborted, match="sent an invalid frame: files that no frame"):
        channel.receive("b:0", Key(2, 2))


# Frames that are sent to it.


def read_chunks(node: RawNode, count: int) -> list[tuple[int, int, int]]:
    """Return message, index and chunk of the next pieces; no BEAT asks for chunks."""
    pieces: list[tuple[int, int, int]] = []
    while len(pieces) < count:
        header, _ = node.read_until(Kind.PIECE, Kind.BEAT)
        assert not header.flags
        if header.kind is Kind.PIECE:
            pieces.append((header.a, header.b, header.c - 1))
    return pieces


@pytest.mark.parametrize("transport", ["shared"])
@pytest.mark.parametrize(
    "mask",
    [
        lambda used: 1 << min(set(range(MAX_CHUNKS)) - used),
        lambda used: (1 << MAX_CHUNKS) - 1,
        lambda used: 1 << MAX_CHUNKS,
        lambda used: 1 << 63,
    ],
    ids=["another", "all", "outside", "far outside"],
)
def test_return_of_chunks_that_were_not_filled_ends_the_run(played, mask):
    channel, node = played
    channel.send("b:0", Key(1, 1), [content(LARGE)])
    used = {at for _, _, at in read_chunks(node, 2)}
    node.send(frame(Kind.BEAT, 0, 0, 0, mask(used)))
    with pytest.raises(Aborted, match="chunks returned that were not filled"):
        channel.receive("b:0", Key(2, 2))


@pytest.mark.parametrize("transport", ["shared"])
def test_return_of_a_chunk_twice_ends_the_run(played):
    channel, node = played
    channel.send("b:0", Key(1, 1), [content(LARGE)])
    (_, _, first), _ = read_chunks(node, 2)
    node.send(frame(Kind.BEAT, 0, 0, 0, 1 << first), message(1, 5))
    receive_sizes(channel, 5)
    node.send(frame(Kind.BEAT, 0, 0, 0, 1 << first))
    with pytest.raises(Aborted, match="chunks returned that were not filled"):
        channel.receive("b:0", Key(2, 2))


def test_acknowledgement_of_more_than_was_sent_ends_the_run(played):
    channel, node = played
    for step in (1, 2):
        channel.send("b:0", Key(1, step), [content(5)])
    node.send(frame(Kind.BEAT, 0, 0, 2), message(1, 5))
    receive_sizes(channel, 5)
    node.send(frame(Kind.BEAT, 0, 0, 3))
    with pytest.raises(Aborted, match="an acknowledgement of what was not sent"):
        channel.receive("b:0", Key(2, 2))


def test_credit_beyond_what_was_sent_is_ignored(make, transport):
    addresses = free_addresses(["a:0", "b:0"])
    channel = make("a:0", addresses, "test job", deadline=0.5)
    with RawNode(transport, addresses, make.keywords.get("key")) as node:
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
        channel.abort(Cause("a:0", "", "the test ends"))
        node.end()
        channel.close()


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


@pytest.mark.parametrize("transport", ["shared"])
def test_message_without_free_chunks_asks_for_those_of_others(played):
    channel, node = played
    for step in range(3):
        channel.send("b:0", Key(1, step), [content(4 * PIECE)])
    used = read_chunks(node, MAX_CHUNKS)
    assert [each[:2] for each in used] == [(n, i) for n in (1, 2) for i in range(4)]
    assert {at for _, _, at in used} == set(range(MAX_CHUNKS))
    while not (header := node.read_until(Kind.BEAT)[0]).flags:
        pass
    assert header.flags == STARVED
    node.send(frame(Kind.BEAT, 0, 0, 0, 1 << 6))
    assert read_chunks(node, 1) == [(3, 0, 6)]


@pytest.mark.parametrize("transport", ["shared"])
def test_message_that_fills_all_chunks_itself_asks_for_none(make, transport):
    addresses = free_addresses(["a:0", "b:0"])
    channel = make("a:0", addresses, "test job")
    with RawNode(transport, addresses) as node:
        node.join()
        channel.join()
        sent = content((MAX_CHUNKS + 1) * PIECE)
        channel.send("b:0", Key(1, 1), [sent])
        read_chunks(node, link.MAX_EAGER)
        node.send(frame(Kind.BEAT, 0, 0, 0, 0, 1, MAX_CHUNKS + 1))
        read_chunks(node, MAX_CHUNKS - link.MAX_EAGER)
        node.send(frame(Kind.BEAT, 0, 0, 0, 1 << 2))
        assert read_chunks(node, 1) == [(1, MAX_CHUNKS, 2)]
        channel.abort(Cause("a:0", "", "the test ends"))
        node.end()
        channel.close()


def test_nodes_without_shared_memory_use_the_connection(shared, monkeypatch):
    monkeypatch.setattr("placer.channel.session.is_supported", lambda: False)
    channels = shared("a:0", "b:0")
    memory = channels["a:0"].share(3 << 20)
    memory[...] = 7
    sent = [content(HUGE), memory]
    channels["a:0"].send("b:0", Key(1, 1), sent)
    got = channels["b:0"].receive("a:0", Key(1, 1))
    assert all(np.array_equal(g, s) for g, s in zip(got, sent, strict=True))
    assert channels["a:0"].streams() == {"b:0": "unix socket"}


@pytest.mark.parametrize("transport", ["shared", "tcp", "tls"])
def test_node_without_peers_joins_at_once(make):
    channel = make("a:0", free_addresses(["a:0"]), "test job")
    channel.join()
    channel.close()


# A connection that breaks.


@pytest.mark.parametrize("transport", ["tcp"])
@pytest.mark.parametrize(
    ("expected", "incomplete"),
    [(0, []), (4, []), (2**63, []), (1, []), (4, [(3, 2)]), (4, [(3, 2**63)])],
    ids=["zero", "ahead", "far ahead", "acknowledged", "complete", "far over"],
)
def test_position_that_no_peer_can_have_ends_the_run(make, expected, incomplete):
    """Three messages were sent, the last of two pieces; one was acknowledged."""
    addresses = free_addresses(["a:0", "b:0"])
    channel = make("a:0", addresses, "test job", deadline=20)
    key = make.keywords["key"]
    with RawNode("tcp", addresses, key) as node:
        node.join()
        channel.join()
        for nbytes in (5, 5, LARGE):
            channel.send("b:0", Key(1, 1), [content(nbytes)])
        node.send(frame(Kind.BEAT, 0, 0, 1), message(1, 5))
        receive_sizes(channel, 5)
    if expected == 4 and not incomplete:
        expected = 5
    with RawNode("tcp", addresses, key) as node:
        node.join(expected=expected, incomplete=incomplete)
        with pytest.raises(Aborted, match=r"b:0: .* sent an invalid frame: position"):
            channel.receive("b:0", Key(2, 2))
    channel.close()


@pytest.mark.parametrize("transport", ["tcp"])
def test_what_a_peer_lacks_after_a_break_is_sent_again(make):
    addresses = free_addresses(["a:0", "b:0"])
    channel = make("a:0", addresses, "test job", deadline=20)
    key = make.keywords["key"]
    with RawNode("tcp", addresses, key) as node:
        assert node.join().expected == 1
        channel.join()
        for nbytes in (5, HUGE, LARGE, 7):
            channel.send("b:0", Key(1, 1), [content(nbytes)])
        node.send(message(1, LARGE), piece(1, 0), message(2, 7))
        eventually(lambda: channel.bytes_received == LARGE + 7)
    with RawNode("tcp", addresses, key) as node:
        answer = node.join(expected=4, incomplete=[(2, 4), (3, 1)])
        assert (answer.expected, answer.incomplete) == (3, [(1, 1)])
        seen = []
        while not seen or seen[-1] != (Kind.MESSAGE, 4):
            header, _ = node.read_until(Kind.MESSAGE, Kind.PIECE)
            name = (header.a,) if header.kind is Kind.MESSAGE else (header.a, header.b)
            seen.append((header.kind, *name))
        if (Kind.PIECE, 3, 1) not in seen:
            header, _ = node.read_until(Kind.PIECE)
            seen.append((header.kind, header.a, header.b))
        assert sorted(seen) == [(Kind.MESSAGE, 4), (Kind.PIECE, 3, 1)]
        node.send(piece(1, 1))
        receive_sizes(channel, LARGE, 7)
        channel.abort(Cause("a:0", "", "the test ends"))
        node.end()
    channel.close()
