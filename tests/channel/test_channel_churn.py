"""A thousand nodes that start and are killed: what is left of them on the other side."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.free_addresses import free_addresses

from placer.channel.protocol import Aborted, Key
from placer.channel.transport import open_channel

TIMES = {"shared": 1000, "zeromq": 300}
"""ZeroMQ's nodes wait for silence each time."""
WARM = 30
QUICK = {"beat": 0.05, "lost_after": 0.3, "join_timeout": 60.0}
LARGE = np.arange(3 << 20, dtype=np.uint8)


def exchange(channel: Any, other: str, memory: np.ndarray, step: int) -> None:
    """Small, large and shared arrays, each way."""
    channel.send(other, Key(1, step), [np.arange(step % 7), memory])
    channel.send(other, Key(2, step), [LARGE])
    channel.receive(other, Key(1, step))
    if step % 2:
        channel.receive(other, Key(2, step))
    else:
        next(channel.pieces(other, Key(2, step)))


def victim(carrier: str, addresses: Mapping[str, str], told: Connection) -> None:
    """A node that goes on until it is killed."""
    channel = open_channel("b:0", addresses, "churn", carrier=carrier, **QUICK)
    channel.join()
    memory = channel.share(1 << 20)
    for step in range(1_000_000):
        exchange(channel, "a:0", memory, step)
        if step == 1:
            told.send("alive")


def once(carrier: str, context: Any, number: int) -> None:
    """Meet a node, see it die in the middle of an exchange, and close."""
    addresses = free_addresses(["a:0", "b:0"])
    here, there = context.Pipe()
    process = context.Process(target=victim, args=(carrier, addresses, there))
    process.start()
    there.close()
    channel = open_channel("a:0", addresses, "churn", carrier=carrier, **QUICK)
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


def held() -> tuple[int, int, int, list[str]]:
    """Descriptors, mappings, threads and children of this process."""
    gc.collect()
    children = [
        pid
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    ]
    return (
        len(os.listdir("/proc/self/fd")),
        Path("/proc/self/maps").read_text().count("memfd:"),
        threading.active_count(),
        children,
    )


def resident() -> int:
    """Bytes of memory in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.parametrize("carrier", TIMES)
def test_nothing_is_left_of_a_thousand_nodes_that_were_killed(carrier):
    # Children are forked from a process that has no threads and no channel.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numpy", "placer.channel.zeromq.channel"])
    for number in range(WARM):
        once(carrier, context, number)
    before, memory = held(), resident()
    for number in range(TIMES[carrier]):
        once(carrier, context, number)
    assert held() == before
    assert resident() - memory < 64 << 20
