"""Free addresses, waiting for a state, and a proxy that breaks a connection."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from placer.channel.interface import Array, Channel, Key

_PORTS = itertools.cycle(random.sample(range(10_000, 32_768), 22_768))
"""Those that Linux gives to no socket that asks for any port, in an order of this
process."""


def free_addresses(nodes: Sequence[str]) -> dict[str, str]:
    """Return a free loopback address for each node; the ports are all different."""
    return {node: f"127.0.0.1:{_free_port()}" for node in nodes}


def _free_port() -> int:
    while True:
        port = next(_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def port(address: str) -> int:
    """Return the port of HOST:PORT."""
    return int(address.rpartition(":")[2])


def exchange_messages(channels: Mapping[str, Channel], step: int) -> None:
    """Send a message each way between a:0 and b:0, to check that the run continues."""
    for me, other in (("a:0", "b:0"), ("b:0", "a:0")):
        channels[me].send(other, Key(9, step), [np.arange(step)])
        (got,) = channels[other].receive(me, Key(9, step))
        assert got.tolist() == list(range(step))


def receive_any(
    channel: Channel, sources: Sequence[str], key: Key
) -> tuple[str, list[Array]]:
    """Receive the message with this key that comes first, whole."""
    mailbox = channel.mailbox
    message = mailbox.claim(channel.node, [(source, key) for source in sources])
    return message.source, mailbox.arrays(message, None)


def eventually(is_done: Callable[[], bool], within: float = 10.0) -> None:
    """Wait until `is_done`; fail after `within` seconds."""
    limit = time.monotonic() + within
    never = threading.Event()
    while not is_done():
        assert time.monotonic() < limit, "the state was not reached"
        never.wait(0.002)


class BreakingProxy:
    """A proxy of a local port that breaks its first connection after some bytes."""

    def __init__(self, port: int, lose_after: int) -> None:
        self.connections = 0
        self._target = port
        self._bytes_left = lose_after
        self.recorded = bytearray()  # what the first connection has sent
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> BreakingProxy:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        # Connections end when the channels close; the server when it is shut down.
        self._server.shutdown(socket.SHUT_RDWR)
        for sock in self._sockets:
            _shut_down(sock)
        for thread in self._threads:
            thread.join(10)
        self._server.close()
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the node does not listen yet
                client.close()
                continue
            self.connections += 1
            self._sockets += [client, server]
            is_broken = self.connections == 1
            for source, sink, is_limited in (
                (client, server, is_broken),
                (server, client, False),
            ):
                thread = threading.Thread(
                    target=self._forward, args=(source, sink, is_limited)
                )
                self._threads.append(thread)
                thread.start()

    def _forward(
        self, source: socket.socket, sink: socket.socket, is_limited: bool
    ) -> None:
        try:
            while data := source.recv(65536):
                if is_limited:
                    data = data[: self._bytes_left]
                    self._bytes_left -= len(data)
                    self.recorded += data[: 1 << 16]
                sink.sendall(data)
                if is_limited and self._bytes_left == 0:
                    break
        except OSError:
            pass  # the other direction has shut down this connection
        _shut_down(source)
        _shut_down(sink)


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was shut down before
