"""TCP frames: valid ones round-trip, all others are refused; strangers do no harm."""

from __future__ import annotations

import socket
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.free_addresses import (
    BreakingProxy,
    eventually,
    exchange_messages,
    free_addresses,
    port,
)

from placer.channel import frame_bodies, payload
from placer.channel.frame_bodies import Hello, InvalidFrame
from placer.channel.protocol import Aborted, Key
from placer.channel.tcp import frames
from placer.channel.tcp.frames import HEADER_BYTES, INLINE, MAX_BODY, Greeting, Kind
from placer.channel.tcp.joining import MAX_PENDING
from placer.memory.aligned import ALIGNMENT

INT64 = st.integers(-(2**63), 2**63 - 1)
KEY = Key(1, 2, 3)


def decode(data: bytes, maximum: int = 1 << 30):
    header = frames.read_header(memoryview(data))
    return frames.decode_message(header, memoryview(data), maximum)


def message(*arrays: np.ndarray, key: Key = KEY) -> bytes:
    return frames.message_frame(1, frames.describe_arrays(key, arrays), arrays)


@given(
    kind=st.sampled_from(Kind),
    fields=st.lists(st.integers(0, 2**64 - 1), max_size=6),
    flags=st.integers(0, 255),
    lines=st.integers(0, MAX_BODY // 64),
)
@settings(derandomize=True, deadline=None)
def test_headers_round_trip(kind, fields, flags, lines):
    data = frames.frame(kind, *fields, flags=flags, length=64 * lines)
    assert len(data) == HEADER_BYTES
    assert frames.read_header(memoryview(data)) == (
        *(kind, flags, 64 * lines),
        *[*fields, *[0] * 6][:6],
    )


@given(key=st.builds(Key, INT64, INT64, INT64), rows=st.integers(0, 5000))
@settings(derandomize=True, deadline=None)
def test_messages_round_trip(key, rows):
    arrays = [np.ones((rows, 3), np.float32), np.array(1), np.zeros((0, 2**40), "?")]
    data = message(*arrays, key=key)
    contents, inline = decode(data)
    assert contents.key == key
    types = tuple((array.dtype, array.shape) for array in arrays)
    assert contents.arrays.types == types
    assert len(inline) == (contents.arrays.span if rows * 12 <= INLINE - 64 else 0)
    assert len(data) % ALIGNMENT == 0
    for i, (dtype, shape) in enumerate(types if inline else ()):
        got = np.ndarray(shape, dtype, inline, contents.arrays.offsets[i])
        assert np.array_equal(got, arrays[i])


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 5000])
def test_texts_round_trip_with_padding(nbytes):
    data = memoryview(frames.text_frame(Kind.ABORT, b"x" * nbytes))
    header = frames.read_header(data)
    assert header.length == len(data) - HEADER_BYTES
    assert bytes(frames.read_text(header, data[HEADER_BYTES:])) == b"x" * nbytes


@given(st.binary(min_size=64, max_size=300))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_arbitrary_bytes_are_refused(junk):
    with pytest.raises(InvalidFrame):
        frames.read_header(memoryview(junk))
    body = junk + bytes(-len(junk) % 64)
    for types in (1, len(junk), 2**63):
        header = frames.frame(Kind.MESSAGE, 1, 0, types, length=len(body))
        with pytest.raises(InvalidFrame):
            decode(header + body)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: b"PLT2" + data[4:], "magic"),
        (lambda data: data[:4] + b"\0" + data[5:], "kind"),
        (lambda data: data[:4] + b"\7" + data[5:], "kind"),
        (lambda data: data[:6] + b"\1" + data[7:], "magic"),
        (lambda data: data[:8] + b"\1" + data[9:], "length"),
        (lambda data: data[:8] + (1 << 31).to_bytes(4, "little") + data[12:], "length"),
    ],
)
def test_headers_that_no_frame_has_are_refused(change, why):
    data = frames.frame(Kind.BEAT, 5)
    assert frames.read_header(memoryview(data)).a == 5
    with pytest.raises(InvalidFrame, match=why):
        frames.read_header(memoryview(change(data)))


def test_messages_whose_sizes_do_not_add_up_are_refused():
    data = message(np.arange(100))
    header = frames.read_header(memoryview(data))
    for body in (data[64:-64], data[64:] + bytes(64)):
        changed = header._replace(length=len(body))
        frame = data[:64] + body
        with pytest.raises(InvalidFrame, match="do not add up"):
            frames.decode_message(changed, memoryview(frame), 1 << 30)
    with pytest.raises(InvalidFrame, match="maximum of 799"):
        decode(data, 799)


def test_largest_header_of_a_message_fits_into_a_frame():
    longest = np.zeros((2**32, 2**16, *[1] * 29, 0), "?")
    arrays = payload.check_arrays([longest] * payload.MAX_ARRAYS, lambda: "it")
    data = message(*arrays)
    assert 780_000 < len(data) <= MAX_BODY - INLINE
    assert len(decode(data)[0].arrays.types) == payload.MAX_ARRAYS


# Strangers.


@pytest.fixture
def run(tcp):
    """Channels a:0 and b:0, and the address of b:0."""
    addresses = free_addresses(["a:0", "b:0"])
    channels = tcp("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))
    return channels, ("127.0.0.1", port(addresses["b:0"]))


def hello(job: str, node: str, to: str) -> bytes:
    return frames.greeting_frame(Greeting(Hello(job, node, to, ["a:0", "b:0"]), 7))


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4,
        bytes(1000),
        frames.frame(Kind.BEAT),
        frames.frame(Kind.GOODBYE),
        frames.text_frame(Kind.ABORT, frame_bodies.encode(["a:0", "", "forged"])),
        message(np.zeros(3)),
        frames.frame(Kind.HELLO, 1 << 20, length=1 << 20),
        frames.text_frame(Kind.HELLO, b"\xdd\xff\xff\xff\xff"),
        hello("another job", "a:0", "b:0"),
        hello("test job", "c:0", "b:0"),
        hello("test job", "b:0", "b:0"),
    ],
)
def test_a_stranger_is_refused_and_the_run_continues(run, sent):
    channels, address = run
    before = channels["b:0"].refused
    with socket.create_connection(address) as stranger:
        stranger.sendall(sent)
        stranger.settimeout(10)
        with suppress(ConnectionResetError):  # closed with bytes that were not read
            assert stranger.recv(1) == b""
    eventually(lambda: channels["b:0"].refused == before + 1)
    exchange_messages(channels, 3)


def test_connections_without_a_hello_are_bounded(run):
    channels, address = run
    strangers = [socket.create_connection(address) for _ in range(3 * MAX_PENDING)]
    try:
        eventually(lambda: channels["b:0"].refused >= 2 * MAX_PENDING)
        exchange_messages(channels, 2)
        strangers[0].settimeout(10)
        assert strangers[0].recv(1) == b""  # the oldest ones are closed
    finally:
        for stranger in strangers:
            stranger.close()


# Connections that break.


@pytest.mark.parametrize("lose_after", [1000, 300_000, 5_000_000, 13_000_000])
@pytest.mark.parametrize("whole", [True, False])
def test_what_was_lost_with_a_connection_is_sent_again(tcp, lose_after, whole):
    addresses = free_addresses(["a:0", "b:0"])
    with BreakingProxy(port(addresses["a:0"]), lose_after) as proxy:
        seen_by_b = {**addresses, "a:0": f"127.0.0.1:{proxy.port}"}
        channels = tcp(
            "a:0",
            "b:0",
            addresses={"a:0": addresses, "b:0": seen_by_b},
            beat=0.1,
            deadline=20.0,
        )
        sent = [np.arange(n, dtype=np.uint32) for n in (10, 200_000, 3_000_000, 7)]
        for step in (1, 2, 3):
            channels["b:0"].send("a:0", Key(1, step), sent)
            channels["b:0"].send("a:0", Key(2, step), sent[:1])
        for step in (1, 2, 3):
            if whole:
                got = channels["a:0"].receive("b:0", Key(1, step))
            else:
                got = [np.zeros_like(array) for array in sent]
                for index, first, view in channels["a:0"].pieces("b:0", Key(1, step)):
                    got[index][first : first + view.size] = view
            assert all(np.array_equal(g, s) for g, s in zip(got, sent, strict=True))
            (small,) = channels["a:0"].receive("b:0", Key(2, step))
            assert np.array_equal(small, sent[0])
        assert proxy.connections >= 2
        exchange_messages(channels, 5)
        channels["b:0"].close()


def test_a_node_that_was_restarted_ends_the_run(run):
    channels, address = run
    with socket.create_connection(address) as restarted:
        restarted.sendall(hello("test job", "a:0", "b:0"))
        with pytest.raises(Aborted, match=r"a:0: seen from b:0: was restarted"):
            channels["b:0"].receive("a:0", Key(1, 1))
