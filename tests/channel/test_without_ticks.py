"""Random programs of several nodes, while the repairs of the channel's thread are off.

A wake-up that is lost, or a wait that becomes a deadlock, shows as a wait that passes the
deadline.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.free_addresses import eventually, receive_any

from placer.channel.interface import Key

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
        source, arrays = receive_any(channel, channel.mailbox.peers, key)
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


def test_nodes_in_a_ring_that_send_more_than_the_bound_do_not_wait(connect, spawn):
    """Two messages each way, of which the bound has room for one."""
    nodes = ["a:0", "b:0", "c:0"]
    channels = connect(*nodes, bound=MIB, deadline=DEADLINE)
    block = np.zeros(900_000, np.uint8)

    def step_often(me: int) -> None:
        channel, after, before = channels[nodes[me]], nodes[me - 2], nodes[me - 1]
        for step in range(40):
            for part in range(2):
                channel.send(after, Key(1, step, part), [block])
            for part in range(2):
                channel.receive(before, Key(1, step, part))

    began = time.monotonic()
    for playing in [spawn(step_often, me) for me in range(3)]:
        playing.result(2 * DEADLINE)
    assert time.monotonic() - began < 4.0


def test_a_stage_of_a_pipeline_does_not_run_ahead_of_a_slow_one(connect, spawn):
    """The last stage receives nothing for a while, and the others wait within the bound."""
    channels = connect("a:0", "b:0", "c:0", bound=MIB, deadline=DEADLINE)
    block = np.zeros(400_000, np.uint8)

    def produce() -> None:
        for step in range(40):
            channels["a:0"].send("b:0", Key(1, step), [block])

    def pass_on() -> None:
        for step in range(40):
            channels["b:0"].receive("a:0", Key(1, step))
            channels["b:0"].send("c:0", Key(1, step), [block])

    stages = [spawn(produce), spawn(pass_on)]
    eventually(lambda: channels["b:0"].waiting() == ("c:0",))
    eventually(lambda: channels["a:0"].waiting() == ("b:0",))
    threading.Event().wait(0.5)  # nothing may happen
    assert channels["a:0"].bytes_sent <= 6 * block.nbytes
    for step in range(40):
        channels["c:0"].receive("b:0", Key(1, step))
    for stage in stages:
        stage.result(10)


@pytest.mark.slow
@pytest.mark.parametrize("count", range(300))
@pytest.mark.parametrize("name", ["shared", "tcp", "tls"])
def test_more_random_programs_do_not_wait_for_a_tick(request, spawn, name, count):
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    run(request.getfixturevalue(name), spawn, seed)
