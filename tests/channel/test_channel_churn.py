"""Resources of a node whose peers are killed, a thousand times."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.free_addresses import free_addresses
from support.own_resources import count_files, resident

from placer.channel.interface import Aborted, Key
from placer.channel.keys import RunKey
from placer.channel.session import Session

RUNS = {"shared": 1000, "tcp": 300}
"""Fewer for TCP, which waits for the silence of each peer."""
WARM_UP_RUNS = 30
FAST = {"beat": 0.05, "lost_after": 0.3, "join_timeout": 60.0}
KEY = RunKey(bytes(32))
LARGE = np.arange(3 << 20, dtype=np.uint8)


def exchange(channel: Any, other: str, memory: np.ndarray, step: int) -> None:
    """Send and receive small, large and shared arrays."""
    channel.send(other, Key(1, step), [np.arange(step % 7), memory])
    channel.send(other, Key(2, step), [LARGE])
    channel.receive(other, Key(1, step))
    if step % 2:
        channel.receive(other, Key(2, step))
    else:
        next(channel.pieces(other, Key(2, step)))


def victim(transport: str, addresses: Mapping[str, str], pipe: Connection) -> None:
    """A node that exchanges messages until it is killed."""
    channel = Session("b:0", addresses, "churn", transport=transport, key=KEY, **FAST)
    channel.join()
    memory = channel.share(1 << 20)
    for step in range(1_000_000):
        exchange(channel, "a:0", memory, step)
        if step == 1:
            pipe.send("alive")


def run_once(transport: str, context: Any, number: int) -> None:
    """Join a node, kill it in the middle of an exchange, and close."""
    addresses = free_addresses(["a:0", "b:0"])
    here, there = context.Pipe()
    process = context.Process(target=victim, args=(transport, addresses, there))
    process.start()
    there.close()
    channel = Session("a:0", addresses, "churn", transport=transport, key=KEY, **FAST)
    channel.join()
    memory = channel.share(1 << 20)
    memory[...] = number % 251

    def kill() -> None:
        here.recv()
        process.kill()

    def go_on() -> None:
        for step in range(1_000_000):
            exchange(channel, "b:0", memory, step)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(Aborted, match=r"^b:0: seen from a:0: lost: "):
        go_on()
    channel.close()
    killer.join()
    process.join()
    process.close()
    here.close()


def count_resources() -> tuple[int, int, int, list[str]]:
    """Return the file descriptors, mappings, threads and children of this process."""
    children = [
        pid
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    ]
    return (
        count_files(),
        Path("/proc/self/maps").read_text().count("memfd:"),
        threading.active_count(),
        children,
    )


@pytest.mark.slow
@pytest.mark.parametrize("transport", RUNS)
def test_killed_peers_leave_no_resources(transport):
    # Children are forked from a server process that has no threads and no channel.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numpy", "placer.channel.session"])
    for number in range(WARM_UP_RUNS):
        run_once(transport, context, number)
    before, memory = count_resources(), resident()
    for number in range(RUNS[transport]):
        run_once(transport, context, number)
    assert count_resources() == before
    assert resident() - memory < 64 << 20
