"""Invalid connections and frames in a run.

Connections of processes that are not nodes are refused, and the run goes on. Invalid
frames of a node end the run with a root cause that names the node.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import os
import platform
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from support.free_addresses import (
    BreakingProxy,
    eventually,
    exchange_messages,
    free_addresses,
    port,
)

from placer.channel import frame_bodies, frames
from placer.channel.frame_bodies import Greeting, Hello
from placer.channel.frame_socket import MAX_FILES, FrameSocket
from placer.channel.frames import CLEAR, HEADER_BYTES, STARVED, Kind, frame
from placer.channel.joining import MAX_PENDING
from placer.channel.keys import new_key
from placer.channel.pieces import PIECE
from placer.channel.pool import MAX_CHUNKS
from placer.channel.protocol import Aborted, Cause, Key
from placer.channel.region import Region
from placer.channel.session import Session
from placer.channel.sockets import unix_address
from placer.errors import RunError
from placer.memory.arena import Arena

POOL = MAX_CHUNKS * PIECE
SETRESUID = {"x86_64": 117, "aarch64": 147}
"""The number of setresuid; the system call changes the user of one thread only."""
WINDOW = 64 << 20


def hello(node: str = "b:0", **other: object) -> bytes:
    fields = {
        "job": "test job",
        "build": "",
        "node": node,
        "to": "a:0",
        "nodes": ["a:0", "b:0"],
    }
    return frames.greeting_frame(Greeting(Hello(**{**fields, **other}), WINDOW, 7))


def read_frame(connection: socket.socket) -> tuple[Kind, bytes]:
    """Receive a frame; return its kind and its body without padding."""
    data = connection.recv(HEADER_BYTES, socket.MSG_WAITALL)
    if len(data) < HEADER_BYTES:
        raise EOFError
    header = frames.read_header(memoryview(data))
    body = connection.recv(header.length, socket.MSG_WAITALL) if header.length else b""
    is_text = header.kind not in (Kind.BEAT, Kind.REGION, Kind.PIECE, Kind.MESSAGE)
    return header.kind, body[: header.a] if is_text else body


@pytest.fixture(params=["unix", "tcp"])
def stranger(request, shared, tcp):
    """Channels a:0 and b:0, and a function that connects to a:0 as another process."""
    addresses = free_addresses(["a:0", "b:0"])
    make = shared if request.param == "unix" else tcp
    channels = make("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))

    def connect() -> socket.socket:
        if request.param == "unix":
            connection = connect_to_a(addresses)
        else:
            connection = socket.create_connection(("127.0.0.1", port(addresses["a:0"])))
        connection.settimeout(10)
        return connection

    return channels, connect


STRANGERS = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4,
    "zeros": bytes(1000),
    "anything": bytes(range(200)),
    "a heartbeat": frame(Kind.BEAT),
    "another frame": frame(Kind.GOODBYE),
    "a forged failure": frames.text_frame(
        Kind.ABORT, frame_bodies.encode_cause(Cause("a:0", "", "forged"))
    ),
    "a megabyte": frame(Kind.HELLO, 1 << 20, length=1 << 20),
    "no names": frames.text_frame(Kind.HELLO, b""),
    "endless names": frames.text_frame(Kind.HELLO, b"\xdd\xff\xff\xff\xff"),
    "another job": hello(job="another"),
    "another build": hello(build="another"),
    "another node": hello(node="c:0"),
    "the node itself": hello(node="a:0"),
    "for another node": hello(to="b:0"),
    "other nodes": hello(nodes=["a:0", "b:0", "c:0"]),
}


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_stranger_is_refused_and_the_run_goes_on(stranger, sent):
    channels, connect = stranger
    before = channels["a:0"].refused
    with connect() as connection:
        connection.sendall(sent)
        with suppress(ConnectionResetError):  # closed with bytes that were not read
            while connection.recv(1000):
                pass
    eventually(lambda: channels["a:0"].refused == before + 1)
    exchange_messages(channels, 3)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"build": "another"}, "it has another build"),
        ({"job": "another"}, "it is of another run"),
        ({"nodes": ["a:0", "b:0", "c:0"]}, "it is of another run"),
        ({"node": "c:0"}, "it is no neighbour"),
    ],
)
def test_a_node_that_is_refused_is_told_why(alone, changed, why):
    a, addresses = alone
    with connect_to_a(addresses) as connection:
        assert read_frame(connection)[0] is Kind.WELCOME
        connection.sendall(hello(**changed))
        assert read_frame(connection) == (Kind.REFUSED, why.encode())
    eventually(lambda: a.refused == 1)


def test_silent_connection_is_refused(shared, monkeypatch):
    monkeypatch.setattr("placer.channel.joining.HELLO_TIMEOUT", 0.01)
    addresses = free_addresses(["a:0", "b:0"])
    channels = shared("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))
    with connect_to_a(addresses) as connection:
        assert read_frame(connection)[0] is Kind.WELCOME
        assert connection.recv(1000) == b""
    eventually(lambda: channels["a:0"].refused == 1)
    exchange_messages(channels, 1)


def test_connections_without_a_hello_are_bounded(stranger):
    channels, connect = stranger
    with ExitStack() as connections:
        strangers = [
            connections.enter_context(connect()) for _ in range(3 * MAX_PENDING)
        ]
        eventually(lambda: channels["a:0"].refused >= 2 * MAX_PENDING)
        exchange_messages(channels, 2)
        assert read_frame(strangers[0])[0] is Kind.WELCOME
        assert strangers[0].recv(1) == b""  # the oldest ones are closed


@pytest.mark.skipif(
    os.geteuid() != 0 or platform.machine() not in SETRESUID,
    reason="only root can change its user",
)
def test_process_of_another_user_is_refused(shared):
    addresses = free_addresses(["a:0", "b:0"])
    channels = shared("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))
    where = unix_address("test job", "a:0", port(addresses["a:0"]))
    answers: list[bytes] = []

    def connect_as_another_user() -> None:
        call = ctypes.CDLL(None, use_errno=True).syscall
        assert call(SETRESUID[platform.machine()], -1, 65534, -1) == 0
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(where)
            answers.append(connection.recv(1000))

    thread = threading.Thread(target=connect_as_another_user)
    thread.start()
    thread.join(10)
    assert answers == [b""]
    eventually(lambda: channels["a:0"].refused == 1)
    exchange_messages(channels, 1)


# Invalid nodes.


def connect_to_a(addresses: Mapping[str, str]) -> socket.socket:
    """Return a connection to a:0 that has sent nothing yet."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(unix_address("test job", "a:0", port(addresses["a:0"])))
    connection.settimeout(10)
    return connection


def connect_and_greet(addresses: Mapping[str, str]) -> socket.socket:
    """Return a connection to a:0 that has been answered, as that of b:0."""
    connection = connect_to_a(addresses)
    assert read_frame(connection)[0] is Kind.WELCOME
    connection.sendall(hello())
    kind, body = read_frame(connection)
    assert kind is Kind.HELLO
    answer = frame_bodies.read_greeting(body).hello
    assert (answer.node, answer.to) == ("a:0", "b:0")
    return connection


@pytest.fixture
def alone() -> Iterator[tuple[Session, dict[str, str]]]:
    """The channel of a:0, without b:0, and the addresses of both."""
    addresses = free_addresses(["a:0", "b:0"])
    channel = Session("a:0", addresses, "test job")
    yield channel, addresses
    channel.close()


def test_connection_that_ends_after_the_answer_is_not_a_peer(alone, spawn):
    """As one that a node made and closed while the other node was stopped."""
    a, addresses = alone
    connect_and_greet(addresses).close()
    eventually(lambda: a.refused == 1)
    assert not a.links
    b = Session("b:0", addresses, "test job")
    for joining in [spawn(channel.join) for channel in (a, b)]:
        joining.result(10)
    exchange_messages({"a:0": a, "b:0": b}, 1)
    b.close()


def test_answered_connection_has_no_timeout(alone, monkeypatch):
    """The node may be stopped then, and may consider itself connected."""
    monkeypatch.setattr("placer.channel.joining.HELLO_TIMEOUT", 0.01)
    a, addresses = alone
    with connect_and_greet(addresses) as connection:
        with connect_to_a(addresses) as silent:
            read_frame(silent)
            assert silent.recv(1000) == b""  # its timeout has passed
        monkeypatch.undo()
        with connect_to_a(addresses) as second:
            read_frame(second)
            second.sendall(hello())
            # b:0 has a connection already.
            assert read_frame(second)[0] is Kind.REFUSED
        assert not a.links
        connection.sendall(frame(Kind.BEAT))
        a.join()


def test_answered_connection_receives_the_last_frame(alone, monkeypatch):
    monkeypatch.setattr("placer.channel.session.LATE_JOIN_WAIT", 0.01)
    a, addresses = alone
    cause = Cause("a:0", "start", "no such file")
    with connect_and_greet(addresses) as connection:
        a.abort(cause)
        a.close()
        kind, body = read_frame(connection)
    assert kind is Kind.ABORT
    assert frame_bodies.read_cause(body) == cause


@pytest.fixture
def broken() -> Iterator[tuple[Session, socket.socket]]:
    """The joined channel of a:0, and the socket of b:0, which the test plays."""
    addresses = free_addresses(["a:0", "b:0"])
    before = len(os.listdir("/proc/self/fd"))
    channel = Session("a:0", addresses, "test job", max_message=6 << 20)
    with connect_and_greet(addresses) as connection:
        connection.sendall(frame(Kind.BEAT))
        channel.join()
        yield channel, connection
        connection.close()
        channel.close()
    gc.collect()
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
    return [memfd(nbytes) if fd is None else fd, frame(Kind.REGION, number, nbytes)]


def message(
    number: int, nbytes: int, reference: tuple[int, int] | None = None
) -> bytes:
    """Return the MESSAGE of one array of bytes, inline if it is small."""
    arrays = [np.zeros(nbytes, np.uint8)]
    references = {} if reference is None else {0: reference}
    contents = frames.describe_arrays(Key(1, 1), arrays, references)
    return frames.message_frame(number, contents, arrays)


def chunk(number: int, index: int, place: int) -> bytes:
    """Return the PIECE of a message that is in a chunk of the pool."""
    return frame(Kind.PIECE, number, index, place + 1)


def piece(number: int, index: int, nbytes: int) -> bytes:
    """Return a PIECE with its bytes."""
    return frame(Kind.PIECE, number, index, length=nbytes) + bytes(nbytes)


LARGE = 2 << 20
CASES: dict[str, Callable[[], Frames]] = {
    "wrong magic": lambda: [b"PLC0" + frame(Kind.BEAT)[4:]],
    "unknown kind": lambda: [frame(Kind.BEAT)[:4] + b"\x63" + frame(Kind.BEAT)[5:]],
    "too long": lambda: [frame(Kind.ABORT, length=1 << 30)],
    "a second hello": lambda: [hello()],
    "a second welcome": lambda: [frames.text_frame(Kind.WELCOME, bytes(32))],
    "an invalid cause": lambda: [frames.text_frame(Kind.ABORT, b"\xc1")],
    "an invalid status": lambda: [frames.text_frame(Kind.STATUS, b"\x91\xc1")],
    "a missing number": lambda: [message(2, 5)],
    "a repeated number": lambda: [message(1, 5), message(1, 5)],
    "no types": lambda: [frame(Kind.MESSAGE, 1)],
    "over the maximum": lambda: [message(1, (6 << 20) + 1)],
    "a piece of no message": lambda: [piece(1, 0, PIECE)],
    "a piece of another message": lambda: [message(1, LARGE), piece(2, 0, PIECE)],
    "a piece out of order": lambda: [message(1, LARGE), piece(1, 1, PIECE)],
    "a piece twice": lambda: [message(1, LARGE), *[piece(1, 0, PIECE)] * 2],
    "a piece of another length": lambda: [message(1, LARGE), piece(1, 0, PIECE - 64)],
    "a piece that was not asked for": lambda: [
        message(1, 6 << 20),
        *[piece(1, n, PIECE) for n in range(5)],
    ],
    "a chunk of no pool": lambda: [message(1, LARGE), chunk(1, 0, 0)],
    "a chunk outside the pool": lambda: [
        *memory(0, POOL),
        message(1, LARGE),
        chunk(1, 0, MAX_CHUNKS),
    ],
    "a chunk that is not free": lambda: [
        *memory(0, POOL),
        message(1, LARGE),
        chunk(1, 0, 3),
        chunk(1, 1, 3),
    ],
    "return of chunks of no pool": lambda: [frame(Kind.BEAT, 0, 0, 0, 1)],
    "an acknowledgement of what was not sent": lambda: [frame(Kind.BEAT, 0, 0, 1)],
    "a pool of another size": lambda: memory(0, POOL + PIECE),
    "a pool that is no chunks": lambda: memory(0, POOL - 1),
    "no bytes": lambda: memory(1, 0),
    "more bytes than the file has": lambda: memory(1, 5000, memfd(4999)),
    "the most bytes": lambda: memory(1, 2**64 - 1, memfd(100)),
    "not sealed": lambda: memory(1, 5000, memfd(5000, 0)),
    "not memory": lambda: memory(1, 5000, on_disk(5000)),
    "no file": lambda: [frame(Kind.REGION, 1, 5000)],
    "files that no frame brings": lambda: [
        item for _ in range(MAX_FILES + 1) for item in (memfd(5000), frame(Kind.BEAT))
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
    """Send frames, as far as the other side accepts them."""
    file: int | None = None
    for item in frames_sent:
        if isinstance(item, int):
            file = item
            continue
        with suppress(BrokenPipeError, ConnectionResetError):
            if file is None:
                connection.sendall(item)
            else:
                socket.send_fds(connection, [item], [file])
        if file is not None:
            os.close(file)
            file = None


@pytest.mark.parametrize("case", CASES)
def test_invalid_frames_end_the_run_and_name_the_node(broken, case):
    channel, connection = broken
    sending = threading.Thread(target=send_all, args=(connection, CASES[case]()))
    sending.start()
    with pytest.raises(Aborted, match=r"^b:0: seen from a:0: sent an invalid frame: "):
        channel.receive("b:0", Key(2, 2))
    kind = Kind.BEAT
    while kind in (Kind.BEAT, Kind.STATUS):
        kind, _ = read_frame(connection)
    assert kind is Kind.ABORT
    channel.close()
    sending.join(10)


def test_valid_variants_of_the_invalid_frames_are_received(broken):
    channel, connection = broken
    frames_sent = [*memory(0, POOL), *memory(7, 5000), message(1, 5), message(2, LARGE)]
    frames_sent += [chunk(2, 0, 3), chunk(2, 1, 0)]
    frames_sent += [message(3, 5, (7, 4995)), frame(Kind.BEAT)]
    frames_sent += [message(4, 3 << 20), message(5, LARGE)]
    frames_sent += [chunk(4, 0, 1), piece(5, 0, PIECE), chunk(4, 1, 2), chunk(4, 2, 4)]
    frames_sent += [piece(5, 1, PIECE)]
    send_all(connection, frames_sent)
    for nbytes in (5, LARGE, 5, 3 << 20, LARGE):
        assert channel.receive("b:0", Key(1, 1))[0].nbytes == nbytes


def test_chunk_cannot_be_filled_while_it_is_read(broken):
    channel, connection = broken
    send_all(connection, [*memory(0, POOL), message(1, LARGE), chunk(1, 0, 3)])
    pieces = channel.pieces("b:0", Key(1, 1))
    next(pieces)
    send_all(connection, [chunk(1, 1, 3)])
    with pytest.raises(Aborted, match="sent an invalid frame: a chunk that is not"):
        channel.receive("b:0", Key(2, 2))
    pieces.close()


def freed(connection: socket.socket) -> int:
    """Receive frames until a BEAT returns chunks; return them as bits."""
    while True:
        data = connection.recv(HEADER_BYTES, socket.MSG_WAITALL)
        header = frames.read_header(memoryview(data))
        if header.length:
            connection.recv(header.length, socket.MSG_WAITALL)
        if header.kind is Kind.BEAT and header.d:
            return header.d


@pytest.mark.parametrize("flag", [STARVED, CLEAR])
def test_a_sender_that_needs_its_pool_or_ends_gets_all_chunks_back(broken, flag):
    """Of messages that the program has not asked for; they are still received."""
    channel, connection = broken
    send_all(connection, [*memory(0, POOL), message(1, LARGE)])
    send_all(connection, [chunk(1, 0, 3), chunk(1, 1, 5), frame(Kind.BEAT, flags=flag)])
    assert freed(connection) == 1 << 3 | 1 << 5
    assert channel.receive("b:0", Key(1, 1))[0].nbytes == LARGE


def test_file_descriptors_that_no_frame_brings_are_closed(broken):
    channel, connection = broken
    before = len(os.listdir("/proc/self/fd"))
    file = memfd(5000)
    socket.send_fds(connection, [message(1, 5)], [file] * 100)
    os.close(file)
    channel.receive("b:0", Key(1, 1))
    # The system closes those for which a receiver has no room.
    assert len(os.listdir("/proc/self/fd")) - before <= 2


def test_frames_and_their_files_survive_a_full_socket():
    """Frames in pieces of any size: the file still arrives with its frame."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    arena = Arena()
    sender, receiver = FrameSocket(ours, arena), FrameSocket(theirs, arena)
    region = Region(1, 4096, "a:0")
    for number in range(1, 200):
        sender.put(message(number, 1000))
        if number % 50 == 0:
            sender.put(frame(Kind.REGION, number, 4096), file=region.fd)
    kinds = []
    while len(kinds) < 202:
        sender.flush()
        receiver.receive()
        while (got := receiver.next()) is not None:
            kinds.append(got.header.kind)
            if got.header.kind is Kind.REGION:
                file = receiver.take_file()
                assert file is not None
                os.close(file)
    assert kinds.count(Kind.REGION) == 3
    assert receiver.take_file() is None
    for end in (sender, receiver, region):
        end.close()


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


def count_mappings() -> int:
    """Return how often this process has mapped shared memory."""
    return Path("/proc/self/maps").read_text().count("memfd:placer")


def test_peer_sees_shared_memory_without_a_copy(shared):
    channels = shared("a:0", "b:0")
    before = count_mappings()
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
    assert count_mappings() == before + 2


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
    assert used == 2 * 5  # for each node: listener, socket, two epolls and eventfd
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
                Session("a:0", addresses, "test job")
    Session("a:0", addresses, "test job").close()


# Connections that break.


@pytest.mark.parametrize("lose_after", [1000, 300_000, 5_000_000, 13_000_000])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", ["tcp", "tls"])
def test_what_was_lost_with_a_connection_is_sent_again(
    request, name, lose_after, whole
):
    connect = request.getfixturevalue(name)
    addresses = free_addresses(["a:0", "b:0"])
    with BreakingProxy(port(addresses["a:0"]), lose_after) as proxy:
        seen_by_b = {**addresses, "a:0": f"127.0.0.1:{proxy.port}"}
        channels = connect(
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


def test_a_node_that_was_restarted_ends_the_run(tcp, spawn):
    addresses = free_addresses(["a:0", "b:0"])
    channels = tcp("a:0", "b:0", addresses=dict.fromkeys(addresses, addresses))
    waiting = spawn(channels["a:0"].receive, "b:0", Key(1, 1))
    channels["b:0"]._incarnation += 1  # as that of another process would be
    channels["b:0"].links["a:0"].socket.abandon()
    with pytest.raises(Aborted, match=r"b:0: seen from a:0: was restarted"):
        waiting.result(10)
    channels["b:0"]._incarnation -= 1


# Keys.


def test_nodes_of_different_keys_do_not_join_and_say_why(spawn):
    addresses = free_addresses(["a:0", "b:0"])
    for encrypt in (True, False):
        nodes = [
            Session(
                node,
                addresses,
                "test job",
                streams=("tcp",),
                key=new_key(),
                encrypt=encrypt,
                join_timeout=1.0,
            )
            for node in addresses
        ]
        reasons = []
        for joining in [spawn(node.join) for node in nodes]:
            with pytest.raises(RunError) as raised:
                joining.result(10)
            reasons.append(raised.value.message)
        assert "it has another key" in reasons[1]
        for node in nodes:
            node.close()


@pytest.mark.parametrize("first", ["a:0", "b:0"])
def test_a_node_without_tls_does_not_join_one_with_tls(spawn, first):
    addresses, key = free_addresses(["a:0", "b:0"]), new_key()
    nodes = [
        Session(
            node,
            addresses,
            "test job",
            streams=("tcp",),
            key=key,
            encrypt=node == first,
            join_timeout=1.0,
        )
        for node in addresses
    ]
    for joining in [spawn(node.join) for node in nodes]:
        with pytest.raises(RunError, match="did not join"):
            joining.result(10)
    for node in nodes:
        node.close()


def test_a_recorded_hello_is_refused_when_it_is_played_again(tcp):
    """Its code covers the nonce of the node that it was for."""
    addresses = free_addresses(["a:0", "b:0"])
    with BreakingProxy(port(addresses["a:0"]), 1 << 40) as proxy:
        seen_by_b = {**addresses, "a:0": f"127.0.0.1:{proxy.port}"}
        channels = tcp(
            "a:0", "b:0", addresses={"a:0": addresses, "b:0": seen_by_b}, beat=0.1
        )
        exchange_messages(channels, 3)
        recorded = bytes(proxy.recorded)
        before = channels["a:0"].refused
        with socket.create_connection(("127.0.0.1", port(addresses["a:0"]))) as again:
            again.settimeout(10)
            again.sendall(recorded)
            assert read_frame(again)[0] is Kind.WELCOME
            assert read_frame(again) == (Kind.REFUSED, b"it has another key")
        eventually(lambda: channels["a:0"].refused == before + 1)
        exchange_messages(channels, 4)
        channels["b:0"].close()
