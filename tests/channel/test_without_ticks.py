"""Random programs of several nodes, while the repairs of the channel's thread are off.

A wake-up that is lost, or a wait that becomes a deadlock, shows as a wait that passes the
deadline.
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from placer.channel.protocol import Key

MIB = 1 << 20
SIZES = (0, 5, 1000, 60_000, 70_000, MIB, 3 * MIB, 9 * MIB)
DEADLINE = 30.0


@dataclass(frozen=True)
class Sent:
    """A message of a program: its number, and the sizes of its arrays in bytes."""

    number: int
    source: str
    to: str
    sizes: tuple[int, ...]
    way: str

    def arrays(self) -> list[np.ndarray]:
        return [
            np.full(size, (self.number + i) % 251, np.uint8)
            for i, size in enumerate(self.sizes)
        ]


def draw_program(
    draw: random.Random, nodes: list[str]
) -> dict[str, list[tuple[str, Sent]]]:
    """Return what each node does: sends and receives, in an order in which every message
    is sent before it is waited for, in one order of all events."""
    events: list[tuple[str, Sent]] = []
    for number in range(draw.randrange(5, 60)):
        source, to = draw.sample(nodes, 2)
        sizes = tuple(
            draw.choices(SIZES, (4, 4, 4, 3, 3, 2, 2, 1), k=draw.randrange(4))
        )
        way = draw.choice(["receive", "pieces", "out", "any"])
        message = Sent(number, source, to, sizes, way)
        at = draw.randrange(len(events) + 1)
        events.insert(at, ("send", message))
        late = draw.choice([at + 1, draw.randrange(at + 1, len(events) + 1)])
        events.insert(late, ("receive", message))
    return {
        node: [
            (what, each)
            for what, each in events
            if node == (each.source if what == "send" else each.to)
        ]
        for node in nodes
    }


def receive(channel: Any, message: Sent) -> list[np.ndarray]:
    key = Key(1, message.number)
    if message.way == "any":
        source, arrays = channel.receive_any(channel.mailbox.peers, key)
        assert source == message.source
        return arrays
    if message.way == "receive":
        return channel.receive(message.source, key)
    got = [np.zeros(size, np.uint8) for size in message.sizes]
    if message.way == "out":
        return channel.receive(message.source, key, out=got)
    for index, first, view in channel.pieces(message.source, key):
        got[index][first : first + view.size] = view
    return got


def play(channel: Any, events: list[tuple[str, Sent]], memory: np.ndarray) -> None:
    for what, message in events:
        arrays = message.arrays()
        if what == "send":
            if message.number % 5 == 0:  # with an array that is not copied
                arrays.append(memory[: message.number + 1])
            channel.send(message.to, Key(1, message.number), arrays)
            continue
        if message.number % 5 == 0 and message.way in ("pieces", "out"):
            message = Sent(**{**vars(message), "way": "receive"})
        got = receive(channel, message)
        for one, sent in zip(got, arrays, strict=False):
            assert np.array_equal(one, sent), message


def run(connect, spawn, seed: int) -> None:
    draw = random.Random(seed)
    nodes = ["a:0", "b:0", "c:0", "d:0"][: draw.randrange(2, 5)]
    program = draw_program(draw, nodes)
    bound = draw.choice([1000, MIB, 8 * MIB, 64 * MIB])
    channels = connect(*nodes, bound=bound, deadline=DEADLINE, lost_after=600.0)
    for channel in channels.values():
        channel._tick = 600.0
    memories = {node: channel.share(100) for node, channel in channels.items()}
    playing = [
        spawn(play, channel, program[node], memories[node])
        for node, channel in channels.items()
    ]
    try:
        for each in playing:
            each.result(2 * DEADLINE)
    finally:
        for channel in channels.values():
            channel._tick = 0.1
            channel._wake()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["shared", "tcp", "tls"])
def test_random_programs_do_not_wait_for_a_tick(request, spawn, name, seed):
    run(request.getfixturevalue(name), spawn, seed)


@pytest.mark.slow
@pytest.mark.parametrize("count", range(300))
@pytest.mark.parametrize("name", ["shared", "tcp", "tls"])
def test_more_random_programs_do_not_wait_for_a_tick(request, spawn, name, count):
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    run(request.getfixturevalue(name), spawn, seed)
