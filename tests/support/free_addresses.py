"""Free ports and waiting for a state, shared by the channel tests."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from placer.channel.protocol import Channel, Key


def free_addresses(nodes: Sequence[str]) -> dict[str, str]:
    """A free loopback port for each node, all chosen before any is let go."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in nodes]
    addresses = {
        node: f"127.0.0.1:{listener.getsockname()[1]}"
        for node, listener in zip(nodes, listeners, strict=True)
    }
    for listener in listeners:
        listener.close()
    return addresses


def port(address: str) -> int:
    """The port of HOST:PORT."""
    return int(address.rpartition(":")[2])


def talk(channels: Mapping[str, Channel], step: int) -> None:
    """A message each way between a:0 and b:0, to see that the run goes on."""
    for me, other in (("a:0", "b:0"), ("b:0", "a:0")):
        channels[me].send(other, Key(9, step), [np.arange(step)])
        (got,) = channels[other].receive(me, Key(9, step))
        assert got.tolist() == list(range(step))


def eventually(happened: Callable[[], bool], within: float = 10.0) -> None:
    """Fail unless `happened` becomes true; for states that have no event to await."""
    limit = time.monotonic() + within
    never = threading.Event()
    while not happened():
        assert time.monotonic() < limit, "it never happened"
        never.wait(0.002)


class Cut:
    """A way to a port that breaks its first connection after so many bytes."""

    def __init__(self, port: int, lose_after: int) -> None:
        self.connections = 0
        self._target = port
        self._left = lose_after
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Cut:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        # Connections end when the channels close; the server when it is shut down.
        self._server.shutdown(socket.SHUT_RDWR)
        for sock in self._sockets:
            _shut(sock)
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
            breaks = self.connections == 1
            for source, sink, counted in (
                (client, server, breaks),
                (server, client, False),
            ):
                thread = threading.Thread(
                    target=self._pass, args=(source, sink, counted)
                )
                self._threads.append(thread)
                thread.start()

    def _pass(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        try:
            while block := source.recv(65536):
                if counted:
                    block = block[: self._left]
                    self._left -= len(block)
                sink.sendall(block)
                if counted and self._left == 0:
                    break
        except OSError:
            pass  # the other direction has shut this connection
        _shut(source)
        _shut(sink)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was shut before
