"""Frames of other processes, and lost frames, in a run over ZeroMQ."""

from __future__ import annotations

import secrets
import socket
import struct

import numpy as np
import pytest
import zmq
from support.free_addresses import (
    BreakingProxy,
    eventually,
    exchange_messages,
    free_addresses,
    port,
)

from placer.channel import frame_bodies
from placer.channel.protocol import Aborted, Key
from placer.channel.zeromq import frames
from placer.channel.zeromq.channel import ZeroMQChannel
from placer.channel.zeromq.frames import Kind
from placer.errors import RunError

SLOW_BEAT = {"beat": 5.0, "lost_after": 20.0}


@pytest.fixture
def stranger(zeromq):
    """Channels a:0 and b:0, and a PUSH socket of another process connected to b:0."""
    addresses = free_addresses(["a:0", "b:0"])
    channels = zeromq("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.setsockopt(zmq.LINGER, 0)
        push.connect(f"tcp://{addresses['b:0']}")
        yield channels, push, addresses["b:0"]


def test_port_in_use_is_an_error_with_the_node():
    addresses = free_addresses(["a:0", "b:0"])
    with (
        socket.create_server(("127.0.0.1", port(addresses["a:0"]))),
        pytest.raises(RunError) as raised,
    ):
        ZeroMQChannel("a:0", addresses, "job")
    assert raised.value.message == (
        f"a:0 cannot listen at {addresses['a:0']}: the port is in use"
    )


def test_bytes_that_are_not_zeromq_are_refused_and_counted(stranger):
    channels, _, address = stranger
    before = channels["b:0"].refused
    junk = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4,
        b"\xff" + bytes(8) + b"\x7f" + b"c" * 100,
        b"\xff"
        + bytes(8)
        + b"\x7f\x03\x00NULL"
        + bytes(48)
        + b"\x04\x05hello"
        + bytes(60),
    )
    for bytes_ in junk:
        with socket.create_connection(("127.0.0.1", port(address))) as connection:
            connection.sendall(bytes_)
    eventually(lambda: channels["b:0"].refused >= before + len(junk))
    exchange_messages(channels, 1)


def test_invalid_frames_are_refused_and_counted(stranger):
    channels, push, _ = stranger
    a, b = channels["a:0"], channels["b:0"]
    stamp = a._stamp
    body = frames.encode_contents(Key(1, 1), [np.zeros(3, np.float32)])
    huge = struct.pack(">Q", 2**63)
    sent = [
        [b""],
        [b"PLC1"],
        [secrets.token_bytes(56)],
        [secrets.token_bytes(500), secrets.token_bytes(500)],
        [stamp._replace(job=bytes(16)).header(Kind.ABORT)],
        [stamp._replace(source=2).header(Kind.BEAT)],
        [stamp._replace(source=1).header(Kind.GOODBYE)],
        [stamp._replace(incarnation=1).header(Kind.GOODBYE)],
        [stamp._replace(incarnation=1).header(Kind.HELLO) + b"\x90"],
        [stamp.header(Kind.ABORT) + b"\xc1"],
        [stamp.header(Kind.ABORT) + b"\xdd\xff\xff\xff\xff"],
        [stamp.header(Kind.MESSAGE, 1, 2**63, 1) + body, b"x"],
        [stamp.header(Kind.MESSAGE, 1, 12, 13) + body, b"x" * 13],
        [stamp.header(Kind.MESSAGE, 1, 12, 12) + body],
        [stamp.header(Kind.MESSAGE, 1, 12, 12) + body, b"x" * 11],
        [stamp.header(Kind.MESSAGE, 1, 12, 12) + body, b"x" * 14],
        [stamp.header(Kind.MESSAGE, 1, 12, 0) + body],
        [stamp.header(Kind.MESSAGE, 1, 2**60, 0, frames.INLINED) + body],
        [stamp.header(Kind.MESSAGE, 1, 12, 0, frames.INLINED) + b"\x00"],
        [stamp.header(Kind.MESSAGE, 1, 13, 12) + body, b"x" * 12],
        [stamp.header(Kind.MESSAGE, 1, 12, 12) + huge + body, b"x" * 12],
    ]
    before = b.refused
    for frame in sent:
        push.send_multipart(frame)
    eventually(lambda: b.refused >= before + len(sent))
    assert b.refused == before + len(sent)
    exchange_messages(channels, 3)


def test_frame_over_the_maximum_closes_only_its_connection(stranger):
    channels, push, _ = stranger
    push.send(bytes(4 << 20))
    push.send(b"and after it")
    eventually(lambda: channels["b:0"].refused > 0)
    exchange_messages(channels, 4)


def test_message_that_arrives_twice_is_received_once(zeromq):
    channels = zeromq("a:0", "b:0", deadline=0.3, **SLOW_BEAT)
    a, b = channels["a:0"], channels["b:0"]
    large = np.arange(3 << 20, dtype=np.uint8)
    for step in (1, 2, 3):
        a.send("b:0", Key(1, step), [np.array(step)] if step < 3 else [large])
        a._links["b:0"].resend(1)
    a.send("b:0", Key(1, 4), [])
    for step in (1, 2):
        assert int(b.receive("a:0", Key(1, step))[0]) == step
    assert np.array_equal(b.receive("a:0", Key(1, 3))[0], large)
    assert b.receive("a:0", Key(1, 4)) == []
    assert b.duplicates >= 1 + 2 + 3
    for step in (1, 2, 3):
        with pytest.raises(RunError, match="waited"):
            b.receive("a:0", Key(1, step))


@pytest.mark.parametrize("lose_after", [1000, 300_000, 5_000_000])
def test_frames_lost_with_a_connection_are_sent_again(zeromq, lose_after):
    addresses = free_addresses(["a:0", "b:0"])
    with BreakingProxy(port(addresses["b:0"]), lose_after) as proxy:
        addresses_of_a = {**addresses, "b:0": f"127.0.0.1:{proxy.port}"}
        channels = zeromq(
            "a:0",
            "b:0",
            addresses={"a:0": addresses_of_a, "b:0": addresses},
            beat=0.1,
            deadline=20.0,
        )
        sent = [np.arange(n, dtype=np.uint32) for n in (10, 200_000, 3_000_000, 7)]
        for step in (1, 2, 3):
            channels["a:0"].send("b:0", Key(1, step), sent)
        for step in (1, 2, 3):
            got = channels["b:0"].receive("a:0", Key(1, step))
            assert all(np.array_equal(g, s) for g, s in zip(got, sent, strict=True))
        assert proxy.connections >= 2
        exchange_messages(channels, 5)
        channels["a:0"].close()


def test_restarted_node_ends_the_run(stranger):
    channels, push, _ = stranger
    later = channels["a:0"]._stamp._replace(incarnation=2**63)
    hello = frame_bodies.Hello("test job", "a:0", "b:0", ["a:0", "b:0"])
    push.send(later.header(Kind.HELLO) + frame_bodies.encode(hello))
    with pytest.raises(Aborted, match=r"a:0: seen from b:0: was restarted"):
        channels["b:0"].receive("a:0", Key(1, 1))
