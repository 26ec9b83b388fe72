"""Shared memory of a node, and the files through which others get it."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.own_resources import count_files, count_mappings
from support.raw_frames import (
    BEAT,
    HUGE,
    POOL,
    Sent,
    content,
    message,
    receive_sizes,
)

from placer.channel import link
from placer.channel.frame_socket import MAX_FILES, FrameSocket
from placer.channel.frames import Memory, encode
from placer.channel.interface import Aborted, Key
from placer.channel.pieces import PIECE
from placer.channel.region import Region
from placer.errors import RunError
from placer.system.memory.arena import Arena


@pytest.fixture
def transport() -> str:
    """Only nodes on one machine share memory."""
    return "shared"


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
    with pytest.raises(RunError, match=r"^a:0: \d+ bytes of shared memory are needed"):
        channels["a:0"].share(1 << 45)
    with pytest.raises(
        RunError, match=r"^a:0: cannot create -1 bytes of shared memory"
    ):
        channels["a:0"].share(-1)
    assert channels["a:0"].share(0).shape == (0,)


def test_nodes_without_shared_memory_use_the_connection(shared, monkeypatch):
    """As where a sandbox refuses the calls."""
    monkeypatch.setattr("placer.channel.session.is_supported", lambda: False)
    channels = shared("a:0", "b:0")
    memory = channels["a:0"].share(3 << 20)
    memory[...] = 7
    sent = [content(HUGE), memory]
    channels["a:0"].send("b:0", Key(1, 1), sent)
    got = channels["b:0"].receive("a:0", Key(1, 1))
    assert all(np.array_equal(g, s) for g, s in zip(got, sent, strict=True))
    assert channels["a:0"].streams() == {"b:0": "unix socket"}


# Memory of the node that is played.


def sealed(nbytes: int, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) -> int:
    file = os.memfd_create("placer", os.MFD_ALLOW_SEALING)
    os.truncate(file, nbytes)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def on_disk(nbytes: int) -> int:
    file, path = tempfile.mkstemp()
    os.truncate(file, nbytes)
    Path(path).unlink()
    return file


def memory(number: int, nbytes: int, file: int | None = None) -> Sent:
    """Return the frame that announces memory, with its file."""
    file = sealed(nbytes) if file is None else file
    return [file, encode(Memory(number, nbytes))]


CASES: dict[str, Callable[[], Sent]] = {
    "a pool that is too large": lambda: memory(0, POOL + PIECE),
    "a pool that is no chunks": lambda: memory(0, POOL - 1),
    "no bytes": lambda: memory(1, 0),
    "more bytes than the file has": lambda: memory(1, 5000, sealed(4999)),
    "the most bytes": lambda: memory(1, 2**64 - 1, sealed(100)),
    "not sealed": lambda: memory(1, 5000, sealed(5000, 0)),
    "not memory": lambda: memory(1, 5000, on_disk(5000)),
    "the same memory twice": lambda: [*memory(1, 5000), *memory(1, 5000)],
    "a reference in the pool": lambda: [*memory(0, POOL), message(1, 5, (0, 0))],
    "a reference outside": lambda: [*memory(1, 5000), message(1, 5, (1, 4996))],
    "a reference far outside": lambda: [
        *memory(1, 5000),
        message(1, 5, (1, 2**64 - 1)),
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_invalid_memory_ends_the_run(played, case):
    channel, node = played
    node.send(*CASES[case]())
    with pytest.raises(Aborted, match=r"^b:0: seen from a:0: sent an invalid frame: "):
        channel.receive("b:0", Key(2, 2))


def test_array_at_the_end_of_memory_is_received(played):
    channel, node = played
    file = sealed(5000)
    os.pwrite(file, content(5), 4995)
    node.send(*memory(7, 5000, file), message(1, 5, (7, 4995)))
    receive_sizes(channel, 5)


def test_too_much_memory_ends_the_run(played, monkeypatch):
    monkeypatch.setattr(link, "MAX_REGIONS", 2)
    channel, node = played
    node.send(*memory(1, 5000), *memory(2, 5000), message(1, 5))
    receive_sizes(channel, 5)
    node.send(*memory(3, 5000))
    with pytest.raises(Aborted, match="sent an invalid frame: wrong region number"):
        channel.receive("b:0", Key(2, 2))


def test_files_that_no_frame_brings_are_bounded_and_closed(played):
    """The system closes those for which a receiver has no room."""
    channel, node = played
    before = count_files()
    for number in range(1, MAX_FILES // 2 + 1):
        file = os.memfd_create("placer")
        socket.send_fds(node.connection, [message(number, 5)], [file] * 100)
        os.close(file)
        receive_sizes(channel, 5)
    assert count_files() <= before + MAX_FILES
    node.send(os.memfd_create("placer"), BEAT)
    with pytest.raises(Aborted, match="sent an invalid frame: unexpected files"):
        channel.receive("b:0", Key(2, 2))


def test_frames_and_their_files_survive_a_full_socket():
    """Frames in pieces of any size: the file still arrives with its frame."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for each in (ours, theirs):
        each.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    arena = Arena()
    sender, receiver = FrameSocket(ours, arena), FrameSocket(theirs, arena)
    region = Region(1, 4096, "a:0")
    for number in range(1, 200):
        sender.put(message(number, 1000))
        if number % 50 == 0:
            sender.put(encode(Memory(number, 4096)), file=region.fd)
    kinds = []
    while len(kinds) < 202:
        sender.flush()
        receiver.receive()
        while (got := receiver.next()) is not None:
            frame, _ = got
            kinds.append(type(frame))
            if isinstance(frame, Memory):
                file = receiver.take_file()
                assert file is not None
                os.close(file)
    assert kinds.count(Memory) == 3
    assert receiver.take_file() is None
    for end in (sender, receiver, region):
        end.close()
