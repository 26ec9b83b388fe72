"""Invalid connections and frames in a run over shared memory.

Connections of processes that are not nodes are refused. Invalid frames of a node end
the run with a root cause that names the node.
"""

from __future__ import annotations

import ctypes
import errno
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
from support.free_addresses import eventually, exchange_messages, free_addresses

from placer.channel import frame_bodies
from placer.channel.frame_bodies import Hello
from placer.channel.protocol import Aborted, Cause, Key
from placer.channel.shared import frames, rendezvous
from placer.channel.shared.channel import SharedMemoryChannel
from placer.channel.shared.chunks import CHUNKS
from placer.channel.shared.frames import Kind, describe_arrays, encode_header, frame
from placer.channel.shared.region import Region
from placer.errors import RunError

POOL = 8 << 20
SETRESUID = {"x86_64": 117, "aarch64": 147}
"""The number of setresuid; the system call changes the user of one thread only."""


def hello(node: str = "b:0", **other: object) -> bytes:
    fields = {"job": "test job", "node": node, "to": "a:0", "nodes": ["a:0", "b:0"]}
    return frame(Kind.HELLO, body=frame_bodies.encode(Hello(**{**fields, **other})))


@pytest.fixture
def stranger(shared):
    """Channels a:0 and b:0, and a function that connects to a:0 as another process."""
    addresses = free_addresses(["a:0", "b:0"])
    channels = shared("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))
    address = rendezvous.address("test job", "a:0", addresses["a:0"])

    def connect() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(address)
        connection.settimeout(10)
        return connection

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


@pytest.mark.parametrize("frames_sent", STRANGERS.values(), ids=STRANGERS.keys())
def test_invalid_first_frames_are_refused_and_counted(stranger, frames_sent):
    channels, connect = stranger
    with connect() as connection:
        connection.send(frames_sent)
        answers = [connection.recv(1000), connection.recv(1000)]
        assert b"" in answers
    assert channels["a:0"].refused == 1
    exchange_messages(channels, 1)


def test_silent_connection_is_refused(shared, monkeypatch):
    monkeypatch.setattr(rendezvous, "HELLO_TIMEOUT", 0.01)
    addresses = free_addresses(["a:0", "b:0"])
    channels = shared("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(rendezvous.address("test job", "a:0", addresses["a:0"]))
        assert connection.recv(1000) == b""
    assert channels["a:0"].refused == 1
    exchange_messages(channels, 1)


def test_many_silent_connections_do_no_harm(stranger):
    channels, connect = stranger
    with ExitStack() as connections:
        for _ in range(rendezvous.MAX_PENDING + 20):
            connections.enter_context(connect())
        eventually(lambda: channels["a:0"].refused >= 20)
        exchange_messages(channels, 1)


@pytest.mark.skipif(
    os.geteuid() != 0 or platform.machine() not in SETRESUID,
    reason="only root can change its user",
)
def test_process_of_another_user_is_refused(stranger):
    channels, connect = stranger
    answers: list[bytes] = []

    def connect_as_another_user() -> None:
        call = ctypes.CDLL(None, use_errno=True).syscall
        assert call(SETRESUID[platform.machine()], -1, 65534, -1) == 0
        with connect() as connection:
            answers.append(connection.recv(1000))

    thread = threading.Thread(target=connect_as_another_user)
    thread.start()
    thread.join(10)
    assert answers == [b""]
    assert channels["a:0"].refused == 1
    exchange_messages(channels, 1)


# Invalid nodes.


def connect_to_a(addresses: Mapping[str, str]) -> socket.socket:
    """Return a connection to a:0 that has sent nothing yet."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(rendezvous.address("test job", "a:0", addresses["a:0"]))
    connection.settimeout(10)
    return connection


def connect_and_greet(addresses: Mapping[str, str]) -> socket.socket:
    """Return a connection to a:0 that has been answered, as that of b:0."""
    connection = connect_to_a(addresses)
    connection.send(hello())
    answer = frame_bodies.read_hello(connection.recv(1000)[frames.HEADER.size :])
    assert (answer.node, answer.to) == ("a:0", "b:0")
    return connection


@pytest.fixture
def alone() -> Iterator[tuple[SharedMemoryChannel, dict[str, str]]]:
    """The channel of a:0, without b:0, and the addresses of both."""
    addresses = free_addresses(["a:0", "b:0"])
    channel = SharedMemoryChannel("a:0", addresses, "test job")
    yield channel, addresses
    channel.close()


def test_connection_that_ends_after_the_answer_is_not_a_peer(alone, spawn):
    """As one that a node made and closed while the other node was stopped."""
    a, addresses = alone
    connect_and_greet(addresses).close()
    eventually(lambda: a.refused == 1)
    assert not a.connected
    b = SharedMemoryChannel("b:0", addresses, "test job")
    for joining in [spawn(channel.join) for channel in (a, b)]:
        joining.result(10)
    exchange_messages({"a:0": a, "b:0": b}, 1)
    b.close()


def test_answered_connection_has_no_timeout(alone, monkeypatch):
    """The node may be stopped then, and may consider itself connected."""
    monkeypatch.setattr(rendezvous, "HELLO_TIMEOUT", 0.01)
    a, addresses = alone
    with connect_and_greet(addresses) as connection:
        with connect_to_a(addresses) as silent:
            assert silent.recv(1000) == b""  # its timeout has passed
        with connect_to_a(addresses) as second:
            second.send(hello())
            assert second.recv(1000) == b""  # b:0 has a connection already
        assert not a.connected
        connection.send(frame(Kind.BEAT))
        a.join()


def test_answered_connection_receives_the_last_frame(alone, monkeypatch):
    monkeypatch.setattr("placer.channel.session.LATE_JOIN_WAIT", 0.01)
    a, addresses = alone
    cause = Cause("a:0", "start", "no such file")
    with connect_and_greet(addresses) as connection:
        a.abort(cause)
        a.close()
        answer = connection.recv(frames.MAX_FRAME)
    kind, *_ = frames.read_header(memoryview(answer))
    assert kind is Kind.ABORT
    assert frame_bodies.read_cause(answer[frames.HEADER.size :]) == cause


@pytest.fixture
def broken() -> Iterator[tuple[SharedMemoryChannel, socket.socket]]:
    """The joined channel of a:0, and the socket of b:0, which the test plays."""
    addresses = free_addresses(["a:0", "b:0"])
    before = len(os.listdir("/proc/self/fd"))
    channel = SharedMemoryChannel("a:0", addresses, "test job", max_message=3 << 20)
    with connect_and_greet(addresses) as connection:
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


Frames = list[bytes | int]
"""Frames, and file descriptors to send with the next frame."""


def memory(number: int, nbytes: int, fd: int | None = None) -> Frames:
    file = memfd(nbytes) if fd is None else fd
    return [frame(Kind.REGION, number, nbytes), file, frame(Kind.DESCRIPTOR)]


def message(
    number: int, nbytes: int, reference: tuple[int, int] | None = None
) -> bytes:
    """Return the MESSAGE of one array of bytes, inline if it is small."""
    arrays = [np.zeros(nbytes, np.uint8)]
    references = {} if reference is None else {0: reference}
    contents = describe_arrays(Key(1, 1), arrays, references)
    (only,) = encode_header(number, contents, arrays)
    return only


LARGE = 2 << 20
CASES: dict[str, Callable[[], Frames]] = {
    "too short": lambda: [b"PLS1"],
    "too long": lambda: [bytes(frames.MAX_FRAME + 100)],
    "wrong magic": lambda: [b"PLC1" + frame(Kind.BEAT)[4:]],
    "unknown kind": lambda: [frame(Kind.BEAT)[:4] + b"\x63" + frame(Kind.BEAT)[5:]],
    "a second hello": lambda: [hello()],
    "an invalid cause": lambda: [frame(Kind.ABORT, body=b"\xc1")],
    "a missing number": lambda: [message(2, 5)],
    "a repeated number": lambda: [message(1, 5), message(1, 5)],
    "no key": lambda: [frame(Kind.MESSAGE, 1, 0, 0)],
    "less payload": lambda: [message(1, 5)[:-1]],
    "more payload": lambda: [message(1, 5) + b"x"],
    "over the maximum": lambda: [*memory(0, POOL), message(1, (3 << 20) + 1)],
    "no chunk pool": lambda: [message(1, LARGE)],
    "endless types": lambda: [frame(Kind.LONG, body=bytes(100_000))] * 22,
    "truncated types": lambda: [frame(Kind.LONG, body=b"\x91"), message(1, 0)],
    "chunk of no message": lambda: [*memory(0, POOL), frame(Kind.CHUNK, 1, 0)],
    "chunk of another message": lambda: [
        *memory(0, POOL),
        message(1, LARGE),
        frame(Kind.CHUNK, 2, 0),
    ],
    "chunk outside the pool": lambda: [
        *memory(0, POOL),
        message(1, LARGE),
        frame(Kind.CHUNK, 1, CHUNKS),
    ],
    "a message inside another": lambda: [
        *memory(0, POOL),
        message(1, LARGE),
        message(2, 5),
    ],
    "return of chunks that were not filled": lambda: [frame(Kind.BEAT, 0, 0, 1)],
    "a pool of another size": lambda: memory(0, POOL + 1),
    "no bytes": lambda: memory(1, 0),
    "more bytes than the file has": lambda: memory(1, 5000, memfd(4999)),
    "the most bytes": lambda: memory(1, 2**64 - 1, memfd(100)),
    "not sealed": lambda: memory(1, 5000, memfd(5000, 0)),
    "not memory": lambda: memory(1, 5000, on_disk(5000)),
    "no file": lambda: [frame(Kind.REGION, 1, 5000), frame(Kind.DESCRIPTOR)],
    "a file that was not announced": lambda: [memfd(5000), frame(Kind.DESCRIPTOR)],
    "another frame instead of the file": lambda: [
        frame(Kind.REGION, 1, 5000),
        memfd(5000),
        frame(Kind.BEAT),
    ],
    "the same memory twice": lambda: [*memory(1, 5000), *memory(1, 5000)],
    "a reference in no memory": lambda: [message(1, 5, (1, 0))],
    "a reference in the pool": lambda: [*memory(0, POOL), message(1, 5, (0, 0))],
    "a reference outside": lambda: [*memory(1, 5000), message(1, 5, (1, 4996))],
    "a reference far outside": lambda: [
        *memory(1, 5000),
        message(1, 5, (1, 2**64 - 1)),
    ],
}


def send_all(connection: socket.socket, frames_sent: Frames) -> None:
    file: int | None = None
    for item in frames_sent:
        if isinstance(item, int):
            file = item
        elif file is None:
            connection.send(item)
        else:
            socket.send_fds(connection, [item], [file])
            os.close(file)
            file = None


@pytest.mark.parametrize("case", CASES)
def test_invalid_frames_end_the_run_and_name_the_node(broken, case):
    channel, connection = broken
    send_all(connection, CASES[case]())
    with pytest.raises(Aborted, match=r"^b:0: seen from a:0: sent an invalid frame: "):
        channel.receive("b:0", Key(2, 2))
    answer = connection.recv(frames.MAX_FRAME)
    kind, *_ = frames.read_header(memoryview(answer))
    while kind is Kind.BEAT:
        answer = connection.recv(frames.MAX_FRAME)
        kind, *_ = frames.read_header(memoryview(answer))
    assert kind is Kind.ABORT


def test_valid_variants_of_the_invalid_frames_are_received(broken):
    channel, connection = broken
    frames_sent = [*memory(0, POOL), *memory(7, 5000), message(1, 5), message(2, LARGE)]
    frames_sent += [frame(Kind.CHUNK, 2, 3), frame(Kind.CHUNK, 2, 0)]
    frames_sent += [message(3, 5, (7, 4995)), frame(Kind.BEAT, 0, 0)]
    frames_sent += [message(4, 3 << 20), *[frame(Kind.CHUNK, 4, n) for n in (1, 2, 4)]]
    send_all(connection, frames_sent)
    for nbytes in (5, LARGE, 5, 3 << 20):
        assert channel.receive("b:0", Key(1, 1))[0].nbytes == nbytes


def test_chunk_cannot_be_filled_while_it_is_read(broken):
    channel, connection = broken
    send_all(connection, [*memory(0, POOL), message(1, LARGE), frame(Kind.CHUNK, 1, 3)])
    pieces = channel.pieces("b:0", Key(1, 1))
    next(pieces)
    send_all(connection, [frame(Kind.CHUNK, 1, 3)])
    with pytest.raises(Aborted, match="sent an invalid frame: a chunk that is not"):
        channel.receive("b:0", Key(2, 2))
    pieces.close()


def test_unannounced_file_descriptors_are_closed(broken):
    channel, connection = broken
    before = len(os.listdir("/proc/self/fd"))
    for number in (1, 2):
        file = memfd(5000)
        socket.send_fds(connection, [message(number, 5)], [file] * 100)
        os.close(file)
        channel.receive("b:0", Key(1, 1))
    assert len(os.listdir("/proc/self/fd")) == before


# Memory.


def test_peer_cannot_truncate_or_write_memory():
    region = Region(1, 1 << 20, "a:0")
    copy = os.dup(region.fd)
    for size in (100, 2 << 20):
        with pytest.raises(PermissionError):
            os.truncate(copy, size)
    with pytest.raises(PermissionError):
        os.write(copy, b"x")
    os.close(copy)
    region.close()


def test_peer_sees_shared_memory_without_a_copy(shared):
    channels = shared("a:0", "b:0")
    memory = channels["a:0"].share(4 << 20)
    table = memory.view(np.float32).reshape(1024, 1024)
    for step in range(2):  # the memory itself is sent once
        channels["a:0"].send("b:0", Key(1, step), [table[512:], table[:0]])
        view, nothing = channels["b:0"].receive("a:0", Key(1, step))
        assert view.shape == (512, 1024)
        assert nothing.shape == (0, 1024)
        assert view.ctypes.data % 64 == 0
        assert not view.flags.writeable
        table[600] = step + 1
        assert (view[88] == step + 1).all()
    assert channels["b:0"].links["a:0"].receiver.regions.keys() == {1}


def test_shared_memory_counts_neither_to_the_bound_nor_to_the_maximum(shared):
    channels = shared("a:0", "b:0", bound=1000, deadline=5, max_message=2000)
    memory = channels["a:0"].share(4 << 20)
    for step in range(5):
        channels["a:0"].send("b:0", Key(1, step), [memory, memory[100:]])
    for step in range(5):
        channels["b:0"].receive("a:0", Key(1, step))


def test_more_shared_memory_than_available_is_an_error(shared):
    channels = shared("a:0", "b:0")
    with pytest.raises(RunError, match=r"^a:0: \d+ bytes of shared memory are more"):
        channels["a:0"].share(1 << 45)
    with pytest.raises(RunError, match=r"^a:0: no -1 bytes of shared memory"):
        channels["a:0"].share(-1)
    assert channels["a:0"].share(0).shape == (0,)


def test_chunk_pools_are_allocated_when_they_are_needed(shared):
    before = len(os.listdir("/proc/self/fd"))
    channels = shared("a:0", "b:0")
    exchange_messages(channels, 3)
    used = len(os.listdir("/proc/self/fd")) - before
    assert used == 2 * 4  # for each node: listener, socket, epoll and eventfd
    channels["a:0"].send("b:0", Key(1, 1), [np.zeros(frames.INLINE + 1, np.uint8)])
    channels["b:0"].receive("a:0", Key(1, 1))
    assert len(os.listdir("/proc/self/fd")) - before > used


def test_a_channel_that_lacks_a_descriptor_leaves_its_address_free(monkeypatch):
    addresses = free_addresses(["a:0"])

    def no_descriptor(*_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "eventfd", no_descriptor)
        for _ in range(2):
            with pytest.raises(OSError, match="Too many open files"):
                SharedMemoryChannel("a:0", addresses, "test job")
    SharedMemoryChannel("a:0", addresses, "test job").close()
