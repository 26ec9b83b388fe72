"""Fixtures that open channels of a few nodes over each transport, and close them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from support.free_addresses import free_addresses
from support.own_resources import count_files
from support.raw_frames import HUGE
from support.raw_node import RawNode
from support.watched_threads import watched_threads

from placer.channel.in_process import memory_channels
from placer.channel.interface import Channel
from placer.channel.keys import new_key
from placer.channel.session import Session

Connect = Callable[..., Mapping[str, Any]]
Spawn = Callable[..., "Future[Any]"]
Alone = tuple[Session, Callable[[], RawNode]]


@pytest.fixture(scope="module")
def threads_watched() -> Iterator[None]:
    """Watch the threads of the channels of a module, and their locks."""
    with watched_threads():
        yield


@pytest.fixture(scope="module", autouse=True)
def quick_collection() -> Iterator[None]:
    """Leave what is loaded, which is much with JAX, out of each `gc.collect`."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Run a call in a thread of its own; returns its future."""
    with ThreadPoolExecutor(32) as pool:
        yield pool.submit


def joined(spawn: Spawn, make: Callable[..., Any]) -> Iterator[Connect]:
    """Yield a function that opens and joins channels of nodes, all in this process."""
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
def tcp(spawn: Spawn) -> Iterator[Connect]:
    """Channels over TCP."""
    yield from joined(spawn, TRANSPORTS["tcp"])


@pytest.fixture
def tls(spawn: Spawn) -> Iterator[Connect]:
    """Channels over TCP with TLS."""
    yield from joined(spawn, TRANSPORTS["tls"])


@pytest.fixture
def shared(spawn: Spawn) -> Iterator[Connect]:
    """Channels over shared memory."""
    yield from joined(spawn, TRANSPORTS["shared"])


@pytest.fixture
def memory() -> Connect:
    """Channels in memory."""

    def connect(*nodes: str, **options: Any) -> Mapping[str, Channel]:
        return memory_channels(nodes, **options)

    return connect


KEY = new_key()
TRANSPORTS = {
    "shared": partial(Session, transport="shared"),
    "tcp": partial(Session, transport="tcp", key=KEY, encrypt=False),
    "tls": partial(Session, transport="tcp", key=KEY),
}


@pytest.fixture(params=["shared", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    """The name of each transport between processes, in turn."""
    return str(request.param)


@pytest.fixture
def make(transport: str) -> Any:
    """The channel class of that transport."""
    return TRANSPORTS[transport]


@pytest.fixture
def between(spawn: Spawn, make: Any) -> Iterator[Connect]:
    """Channels over that transport, all in this process."""
    yield from joined(spawn, make)


@pytest.fixture(params=["memory", *TRANSPORTS])
def connect(
    request: pytest.FixtureRequest, spawn: Spawn, memory: Connect
) -> Iterator[Connect]:
    """Channels of threads, and over each transport between processes, in turn."""
    if request.param == "memory":
        yield memory
    else:
        yield from joined(spawn, TRANSPORTS[request.param])


# A node that the test plays.


@pytest.fixture
def files_are_closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that the fixtures and the test leave no file descriptor open."""
    before = count_files()
    yield
    request.node.funcargs.clear()  # with views of shared memory
    assert count_files() == before


@pytest.fixture
def addresses() -> dict[str, str]:
    """Addresses of a:0 and b:0."""
    return free_addresses(["a:0", "b:0"])


@pytest.fixture
def limits() -> dict[str, Any]:
    """The options of the channel of a:0."""
    return {"max_message": HUGE, "deadline": 5, "join_timeout": 10}


@pytest.fixture
def alone(
    files_are_closed: None,
    make: Any,
    transport: str,
    addresses: dict[str, str],
    limits: dict[str, Any],
) -> Iterator[Alone]:
    """The channel of a:0, without b:0, and a function that connects as b:0."""
    channel = make("a:0", addresses, "test job", **limits)
    yield channel, lambda: RawNode(transport, addresses, make.keywords.get("key"))
    channel.close()


@pytest.fixture
def played(alone: Alone) -> Iterator[tuple[Session, RawNode]]:
    """The joined channel of a:0, and the connection of b:0, which the test plays."""
    channel, connect = alone
    with connect() as node:
        node.join()
        channel.join()
        yield channel, node
        node.leave()
