"""A node of a test run, as a process: joins, says so, then plays its role.

Usage: python channel_node.py NODE ROLE PEER CARRIER ADDRESSES-AS-JSON OPTIONS-AS-JSON.
What it prints last is the failure that ended it, or how it ended.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator

import numpy as np

from placer.channel.protocol import Channel, Key
from placer.channel.transport import open_channel
from placer.errors import RunError

SIZES = (10, 300_000, 5, 3_000_001, 100_000)
"""Bytes: some go with a notice, some through the ring, one through much of it."""
FINITE = 60
"""Messages that the roles send and receive that come to an end."""


def message(step: int) -> list[np.ndarray]:
    """Arrays that nobody could take for those of another step."""
    return [np.full(size, (step + i) % 251, np.uint8) for i, size in enumerate(SIZES)]


def check(step: int, arrays: Iterable[np.ndarray]) -> None:
    for got, sent in zip(arrays, message(step), strict=True):
        if not np.array_equal(got, sent):
            raise AssertionError(f"step {step} is not what was sent")


def wait(channel: Channel, peer: str) -> None:
    channel.receive(peer, Key(2, 1))


def send(channel: Channel, peer: str, steps: Iterable[int]) -> None:
    for step in steps:
        channel.send(peer, Key(1, step), message(step))
        if step in (0, 30):
            print("sending", flush=True)


def receive(channel: Channel, peer: str, steps: Iterable[int]) -> None:
    for step in steps:
        if step % 3 == 2:
            arrays = [np.zeros(size, np.uint8) for size in SIZES]
            for index, first, view in channel.pieces(peer, Key(1, step)):
                arrays[index][first : first + view.size] = view
        else:
            arrays = channel.receive(peer, Key(1, step))
        check(step, arrays)
        if step in (0, 30):
            print("receiving", flush=True)


def play(channel: Channel, role: str, peer: str) -> str:
    some: Iterator[int] = iter(range(FINITE))
    if role == "wait":
        wait(channel, peer)
    elif role == "send":
        send(channel, peer, itertools.count())
    elif role == "receive":
        receive(channel, peer, itertools.count())
    elif role == "send all":
        send(channel, peer, some)
        wait(channel, peer)  # for word that all has come
    elif role == "receive late":
        sys.stdin.readline()
        receive(channel, peer, some)
        channel.send(peer, Key(2, 1), [])
    else:
        raise ValueError(role)
    return "done"


def main(
    node: str, role: str, peer: str, carrier: str, addresses: str, options: str
) -> None:
    channel = open_channel(
        node, json.loads(addresses), "test job", carrier=carrier, **json.loads(options)
    )
    channel.join()
    print("joined", flush=True)
    try:
        print(play(channel, role, peer), flush=True)
    except RunError as error:
        print(error, flush=True)
    channel.close()


main(*sys.argv[1:])
