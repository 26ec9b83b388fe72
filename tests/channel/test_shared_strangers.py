"""What processes that are no nodes, and nodes that are broken, do to a run over shared
memory: nothing, and a failure that names them."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from support.free_addresses import eventually, free_addresses, talk

from placer.channel import wire_bodies
from placer.channel.protocol import Aborted, Cause, Key
from placer.channel.shared import frames, rendezvous
from placer.channel.shared.channel import SharedMemoryChannel
from placer.channel.shared.frames import Kind, frame
from placer.channel.shared.header import describe, opening, spread
from placer.channel.shared.region import Region
from placer.channel.shared.ring import BLOCKS
from placer.channel.wire_bodies import Hello
from placer.errors import RunError

RING = 8 << 20
SETRESUID = {"x86_64": 117, "aarch64": 147}
"""System calls, which change the user of one thread only."""


def hello(node: str = "b:0", **other: object) -> bytes:
    said = {"job": "test job", "node": node, "to": "a:0", "nodes": ["a:0", "b:0"]}
    return frame(Kind.HELLO, body=wire_bodies.encode(Hello(**{**said, **other})))


@pytest.fixture
def stranger(shared):
    """Channels a:0 and b:0, and a way to connect to a:0 without being a node."""
    addresses = free_addresses(["a:0", "b:0"])
    channels = shared("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))
    address = rendezvous.address("test job", "a:0", addresses["a:0"])

    def connect() -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.connect(address)
        made.settimeout(10)
        return made

    return channels, connect


STRANGERS = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "nothing": b"",
    "anything": bytes(range(200)),
    "too much": bytes(frames.MAX_FRAME + 1),
    "another frame": frame(Kind.GOODBYE),
    "no names": frame(Kind.HELLO),
    "endless names": frame(Kind.HELLO, body=b"\xdd\xff\xff\xff\xff"),
    "another job": hello(job="another"),
    "another node": hello(node="c:0"),
    "the node itself": hello(node="a:0"),
    "for another node": hello(to="b:0"),
    "other nodes": hello(nodes=["a:0", "b:0", "c:0"]),
    "a node that is there": hello(),
}


@pytest.mark.parametrize("said", STRANGERS.values(), ids=STRANGERS.keys())
def test_strangers_are_turned_away_and_counted(stranger, said):
    channels, connect = stranger
    with connect() as connection:
        connection.send(said)
        answers = [connection.recv(1000), connection.recv(1000)]
        assert b"" in answers
    assert channels["a:0"].refused == 1
    talk(channels, 1)


def test_a_stranger_that_says_nothing_is_turned_away(shared, monkeypatch):
    monkeypatch.setattr(rendezvous, "PATIENCE", 0.01)
    addresses = free_addresses(["a:0", "b:0"])
    channels = shared("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(rendezvous.address("test job", "a:0", addresses["a:0"]))
        assert connection.recv(1000) == b""
    assert channels["a:0"].refused == 1
    talk(channels, 1)


def test_a_flood_of_strangers_does_no_harm(stranger):
    channels, connect = stranger
    with ExitStack() as held:
        for _ in range(rendezvous.UNKNOWN + 20):
            held.enter_context(connect())
        eventually(lambda: channels["a:0"].refused >= 20)
        talk(channels, 1)


@pytest.mark.skipif(
    os.geteuid() != 0 or platform.machine() not in SETRESUID,
    reason="only root can be somebody else",
)
def test_a_process_of_another_user_is_turned_away_whatever_it_knows(stranger):
    channels, connect = stranger
    answers: list[bytes] = []

    def as_nobody() -> None:
        call = ctypes.CDLL(None, use_errno=True).syscall
        assert call(SETRESUID[platform.machine()], -1, 65534, -1) == 0
        with connect() as connection:
            answers.append(connection.recv(1000))

    thread = threading.Thread(target=as_nobody)
    thread.start()
    thread.join(10)
    assert answers == [b""]
    assert channels["a:0"].refused == 1
    talk(channels, 1)


# A node that is broken.


def meet(addresses: Mapping[str, str]) -> socket.socket:
    """A connection to a:0 that has said nothing yet."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(rendezvous.address("test job", "a:0", addresses["a:0"]))
    made.settimeout(10)
    return made


def greet(addresses: Mapping[str, str]) -> socket.socket:
    """A connection to a:0 that it has answered, as b:0's."""
    made = meet(addresses)
    made.send(hello())
    answer = wire_bodies.read_hello(made.recv(1000)[frames.HEADER.size :])
    assert (answer.node, answer.to) == ("a:0", "b:0")
    return made


@pytest.fixture
def alone() -> Iterator[tuple[SharedMemoryChannel, dict[str, str]]]:
    """The channel of a:0, where b:0 is still to come, and the addresses of both."""
    addresses = free_addresses(["a:0", "b:0"])
    channel = SharedMemoryChannel("a:0", addresses, "test job")
    yield channel, addresses
    channel.close()


def test_a_connection_that_ends_once_it_was_answered_is_nobodys(alone, spawn):
    """As those that a node made and gave up while the other one was stopped."""
    a, addresses = alone
    greet(addresses).close()
    eventually(lambda: a.refused == 1)
    assert a.met == ()
    b = SharedMemoryChannel("b:0", addresses, "test job")
    for joining in [spawn(channel.join) for channel in (a, b)]:
        joining.result(10)
    talk({"a:0": a, "b:0": b}, 1)
    b.close()


def test_a_node_may_take_its_time_once_it_was_answered(alone, monkeypatch):
    """It may be stopped just then, and has met a node that must not take that back."""
    monkeypatch.setattr(rendezvous, "PATIENCE", 0.01)
    a, addresses = alone
    with greet(addresses) as connection:
        with meet(addresses) as silent:
            assert silent.recv(1000) == b""  # it came later, and its time is over
        with meet(addresses) as second:
            second.send(hello())
            assert second.recv(1000) == b""  # the name is taken
        assert a.met == ()
        connection.send(frame(Kind.BEAT))
        a.join()


def test_a_node_that_was_answered_is_told_how_the_other_ended(alone, monkeypatch):
    monkeypatch.setattr("placer.channel.joining.LATE", 0.01)
    a, addresses = alone
    cause = Cause("a:0", "start", "no such file")
    with greet(addresses) as connection:
        a.abort(cause)
        a.close()
        told = connection.recv(frames.MAX_FRAME)
    kind, *_ = frames.read_header(memoryview(told))
    assert kind is Kind.ABORT
    assert wire_bodies.read_cause(told[frames.HEADER.size :]) == cause


@pytest.fixture
def broken() -> Iterator[tuple[SharedMemoryChannel, socket.socket]]:
    """The channel of a:0, joined, and the socket of a b:0 that is this test."""
    addresses = free_addresses(["a:0", "b:0"])
    before = len(os.listdir("/proc/self/fd"))
    channel = SharedMemoryChannel("a:0", addresses, "test job", max_message=3 << 20)
    with greet(addresses) as connection:
        connection.send(frame(Kind.BEAT))
        channel.join()
        yield channel, connection
        channel.close()
    assert len(os.listdir("/proc/self/fd")) == before


def memfd(nbytes: int, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) -> int:
    fd = os.memfd_create("placer", os.MFD_ALLOW_SEALING)
    os.truncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def on_disk(nbytes: int) -> int:
    fd, path = tempfile.mkstemp()
    os.truncate(fd, nbytes)
    Path(path).unlink()
    return fd


Said = list[bytes | int]
"""Frames, and files that go with the next frame."""


def memory(number: int, nbytes: int, fd: int | None = None) -> Said:
    file = memfd(nbytes) if fd is None else fd
    return [frame(Kind.REGION, number, nbytes), file, frame(Kind.DESCRIPTOR)]


def message(number: int, nbytes: int, place: tuple[int, int] | None = None) -> bytes:
    """One array of bytes, inline if it is small."""
    arrays = [np.zeros(nbytes, np.uint8)]
    types, described = describe(arrays)
    places = {} if place is None else {0: place}
    _, span = spread(described.sizes, places)
    (only,) = opening(number, Key(1, 1), types, arrays, places, span)
    return only


LARGE = 2 << 20
CASES: dict[str, Callable[[], Said]] = {
    "too short": lambda: [b"PLS1"],
    "too long": lambda: [bytes(frames.MAX_FRAME + 100)],
    "wrong magic": lambda: [b"PLC1" + frame(Kind.BEAT)[4:]],
    "unknown kind": lambda: [frame(Kind.BEAT)[:4] + b"\x63" + frame(Kind.BEAT)[5:]],
    "a second hello": lambda: [hello()],
    "a cause that is none": lambda: [frame(Kind.ABORT, body=b"\xc1")],
    "a number left out": lambda: [message(2, 5)],
    "a number twice": lambda: [message(1, 5), message(1, 5)],
    "no address": lambda: [frame(Kind.MESSAGE, 1, 0, 0)],
    "less payload": lambda: [message(1, 5)[:-1]],
    "more payload": lambda: [message(1, 5) + b"x"],
    "over the maximum": lambda: [*memory(0, RING), message(1, (3 << 20) + 1)],
    "no ring": lambda: [message(1, LARGE)],
    "endless types": lambda: [frame(Kind.LONG, body=bytes(100_000))] * 22,
    "types cut off": lambda: [frame(Kind.LONG, body=b"\x91"), message(1, 0)],
    "block of no message": lambda: [*memory(0, RING), frame(Kind.BLOCK, 1, 0)],
    "block of another message": lambda: [
        *memory(0, RING),
        message(1, LARGE),
        frame(Kind.BLOCK, 2, 0),
    ],
    "block outside the ring": lambda: [
        *memory(0, RING),
        message(1, LARGE),
        frame(Kind.BLOCK, 1, BLOCKS),
    ],
    "a message inside another": lambda: [
        *memory(0, RING),
        message(1, LARGE),
        message(2, 5),
    ],
    "blocks back that were not filled": lambda: [frame(Kind.FREE, 1)],
    "a ring of another size": lambda: memory(0, RING + 1),
    "no bytes": lambda: memory(1, 0),
    "more bytes than there are": lambda: memory(1, 5000, memfd(4999)),
    "the most bytes": lambda: memory(1, 2**64 - 1, memfd(100)),
    "not sealed": lambda: memory(1, 5000, memfd(5000, 0)),
    "not memory": lambda: memory(1, 5000, on_disk(5000)),
    "no file": lambda: [frame(Kind.REGION, 1, 5000), frame(Kind.DESCRIPTOR)],
    "a file that was not announced": lambda: [memfd(5000), frame(Kind.DESCRIPTOR)],
    "something else than the file": lambda: [
        frame(Kind.REGION, 1, 5000),
        memfd(5000),
        frame(Kind.BEAT),
    ],
    "the same memory twice": lambda: [*memory(1, 5000), *memory(1, 5000)],
    "a place in no memory": lambda: [message(1, 5, (1, 0))],
    "a place in the ring": lambda: [*memory(0, RING), message(1, 5, (0, 0))],
    "a place outside": lambda: [*memory(1, 5000), message(1, 5, (1, 4996))],
    "a place far outside": lambda: [*memory(1, 5000), message(1, 5, (1, 2**64 - 1))],
}


def say(connection: socket.socket, said: Said) -> None:
    file: int | None = None
    for each in said:
        if isinstance(each, int):
            file = each
        elif file is None:
            connection.send(each)
        else:
            socket.send_fds(connection, [each], [file])
            os.close(file)
            file = None


@pytest.mark.parametrize("case", CASES)
def test_a_node_that_sends_what_none_sends_is_named(broken, case):
    channel, connection = broken
    say(connection, CASES[case]())
    with pytest.raises(
        Aborted, match=r"^b:0: seen from a:0: sent what no node sends: "
    ):
        channel.receive("b:0", Key(2, 2))
    told = connection.recv(frames.MAX_FRAME)
    kind, *_ = frames.read_header(memoryview(told))
    while kind is Kind.BEAT:
        told = connection.recv(frames.MAX_FRAME)
        kind, *_ = frames.read_header(memoryview(told))
    assert kind is Kind.ABORT


def test_the_well_formed_neighbours_of_these_are_received(broken):
    channel, connection = broken
    said = [*memory(0, RING), *memory(7, 5000), message(1, 5), message(2, LARGE)]
    said += [frame(Kind.BLOCK, 2, 3), frame(Kind.BLOCK, 2, 0)]
    said += [message(3, 5, (7, 4995)), frame(Kind.BEAT, 0, 0)]
    said += [message(4, 3 << 20), *[frame(Kind.BLOCK, 4, n) for n in (1, 2, 4)]]
    say(connection, said)
    for nbytes in (5, LARGE, 5, 3 << 20):
        assert channel.receive("b:0", Key(1, 1))[0].nbytes == nbytes


def test_a_block_cannot_be_filled_while_it_is_read(broken):
    channel, connection = broken
    say(connection, [*memory(0, RING), message(1, LARGE), frame(Kind.BLOCK, 1, 3)])
    pieces = channel.pieces("b:0", Key(1, 1))
    next(pieces)
    say(connection, [frame(Kind.BLOCK, 1, 3)])
    with pytest.raises(Aborted, match="sent what no node sends: a block that is not"):
        channel.receive("b:0", Key(2, 2))
    pieces.close()


def test_files_that_come_with_no_memory_are_closed(broken):
    channel, connection = broken
    before = len(os.listdir("/proc/self/fd"))
    for number in (1, 2):
        file = memfd(5000)
        socket.send_fds(connection, [message(number, 5)], [file] * 100)
        os.close(file)
        channel.receive("b:0", Key(1, 1))
    assert len(os.listdir("/proc/self/fd")) == before


# Memory.


def test_memory_cannot_be_cut_short_or_written_to_by_a_peer():
    region = Region(1, 1 << 20, "a:0")
    copy = os.dup(region.fd)
    for size in (100, 2 << 20):
        with pytest.raises(PermissionError):
            os.truncate(copy, size)
    with pytest.raises(PermissionError):
        os.write(copy, b"x")
    os.close(copy)
    region.close()


def test_what_is_shared_is_seen_by_the_peer_without_a_copy(shared):
    channels = shared("a:0", "b:0")
    memory = channels["a:0"].share(4 << 20)
    table = memory.view(np.float32).reshape(1024, 1024)
    for step in range(2):  # the memory itself is passed once
        channels["a:0"].send("b:0", Key(1, step), [table[512:], table[:0]])
        view, nothing = channels["b:0"].receive("a:0", Key(1, step))
        assert view.shape == (512, 1024)
        assert nothing.shape == (0, 1024)
        assert view.ctypes.data % 64 == 0
        assert not view.flags.writeable
        table[600] = step + 1
        assert (view[88] == step + 1).all()
    assert channels["b:0"]._upkeep.links["a:0"]._intake._regions.keys() == {1}


def test_what_is_shared_costs_nothing_of_the_bound_nor_of_the_largest_size(shared):
    channels = shared("a:0", "b:0", bound=1000, deadline=5, max_message=2000)
    memory = channels["a:0"].share(4 << 20)
    for step in range(5):
        channels["a:0"].send("b:0", Key(1, step), [memory, memory[100:]])
    for step in range(5):
        channels["b:0"].receive("a:0", Key(1, step))


def test_more_memory_than_there_is_is_an_error(shared):
    channels = shared("a:0", "b:0")
    with pytest.raises(RunError, match=r"^a:0: \d+ bytes of shared memory are more"):
        channels["a:0"].share(1 << 45)
    with pytest.raises(RunError, match=r"^a:0: no -1 bytes of shared memory"):
        channels["a:0"].share(-1)
    assert channels["a:0"].share(0).shape == (0,)


def test_ring_and_files_are_made_when_they_are_needed(shared):
    before = len(os.listdir("/proc/self/fd"))
    channels = shared("a:0", "b:0")
    talk(channels, 3)
    own = len(os.listdir("/proc/self/fd")) - before
    assert own == 2 * 4  # each a listener, a socket, and two to wait with
    channels["a:0"].send("b:0", Key(1, 1), [np.zeros(frames.INLINE + 1, np.uint8)])
    channels["b:0"].receive("a:0", Key(1, 1))
    assert len(os.listdir("/proc/self/fd")) - before > own
