"""Runs of a few nodes over each carrier, each closed when its test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from support.free_addresses import free_addresses

from placer.channel.memory import MemoryHub
from placer.channel.protocol import Channel
from placer.channel.shared.channel import SharedMemoryChannel
from placer.channel.zeromq.channel import ZeroMQChannel

Connect = Callable[..., Mapping[str, Any]]
Spawn = Callable[..., "Future[Any]"]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Run a call in a thread of its own; the future's `result` has its outcome."""
    with ThreadPoolExecutor(32) as pool:
        yield pool.submit


def joined(spawn: Spawn, make: Callable[..., Any]) -> Iterator[Connect]:
    """Joined channels of the named nodes, all in this process."""
    opened: list[Any] = []

    def connect(
        *nodes: str,
        addresses: Mapping[str, Mapping[str, str]] | None = None,
        **options: Any,
    ) -> Mapping[str, Any]:
        shared = free_addresses(nodes)
        options.setdefault("join_timeout", 15.0)
        channels = {}
        for node in nodes:
            seen = addresses[node] if addresses else shared
            channels[node] = make(node, seen, "test job", **options)
            opened.append(channels[node])
        for joining in [spawn(channel.join) for channel in channels.values()]:
            joining.result(20)
        return channels

    yield connect
    closing = [spawn(channel.close) for channel in opened]
    for closed in closing:
        closed.result(20)


@pytest.fixture
def zeromq(spawn: Spawn) -> Iterator[Connect]:
    """Channels over ZeroMQ."""
    yield from joined(spawn, ZeroMQChannel)


@pytest.fixture
def shared(spawn: Spawn) -> Iterator[Connect]:
    """Channels over shared memory."""
    yield from joined(spawn, SharedMemoryChannel)


@pytest.fixture
def memory() -> Connect:
    """Channels of a memory hub."""

    def connect(*nodes: str, **options: Any) -> Mapping[str, Channel]:
        hub = MemoryHub(nodes, **options)
        return {node: hub.channel(node) for node in nodes}

    return connect


CARRIERS = {"zeromq": ZeroMQChannel, "shared": SharedMemoryChannel}


@pytest.fixture(params=CARRIERS)
def carrier(request: pytest.FixtureRequest) -> str:
    """The name of each carrier between processes in turn."""
    return str(request.param)


@pytest.fixture
def make(carrier: str) -> Any:
    """The class of channels over that carrier."""
    return CARRIERS[carrier]


@pytest.fixture
def between(request: pytest.FixtureRequest, carrier: str) -> Connect:
    """Channels over that carrier, all in this process."""
    made: Connect = request.getfixturevalue(carrier)
    return made


@pytest.fixture(params=["memory", "zeromq", "shared"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Channels over each carrier in turn."""
    made: Connect = request.getfixturevalue(request.param)
    return made
