"""A node of a test run, as a process: it joins, prints that, and plays its role.

Usage: python channel_node.py NODE ROLE PEER TRANSPORT ADDRESSES-AS-JSON OPTIONS-AS-JSON.
The last line that it prints is the failure that ended it, or "done".
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator

import numpy as np

from placer.channel.interface import Channel, Key
from placer.channel.keys import RunKey
from placer.channel.session import Session
from placer.errors import RunError

SIZES = (10, 300_000, 5, 3_000_001, 100_000)
"""Bytes: some are sent inline, some in chunks, one fills much of the chunk pool."""
FINITE = 60
"""Messages that the roles with an end send and receive."""


def message(step: int) -> list[np.ndarray]:
    """Return the arrays of a step, which differ from those of other steps."""
    return [np.full(size, (step + i) % 251, np.uint8) for i, size in enumerate(SIZES)]


def check(step: int, arrays: Iterable[np.ndarray]) -> None:
    for received, sent in zip(arrays, message(step), strict=True):
        if not np.array_equal(received, sent):
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
    steps: Iterator[int] = iter(range(FINITE))
    if role == "wait":
        wait(channel, peer)
    elif role == "send":
        send(channel, peer, itertools.count())
    elif role == "receive":
        receive(channel, peer, itertools.count())
    elif role == "send all":
        send(channel, peer, steps)
        wait(channel, peer)  # until the receiver has received all
    elif role == "receive late":
        sys.stdin.readline()
        receive(channel, peer, steps)
        channel.send(peer, Key(2, 1), [])
    else:
        raise ValueError(role)
    return "done"


def main(
    node: str, role: str, peer: str, transport: str, addresses: str, options: str
) -> None:
    channel = Session(
        node,
        json.loads(addresses),
        "test job",
        transport="tcp" if transport == "tls" else transport,
        key=RunKey(bytes(32)),
        encrypt=transport == "tls",
        **json.loads(options),
    )
    channel.join()
    print("joined", flush=True)
    try:
        print(play(channel, role, peer), flush=True)
    except RunError as error:
        print(error, flush=True)
    channel.close()


main(*sys.argv[1:])
