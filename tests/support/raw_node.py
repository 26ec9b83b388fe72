"""The node b:0 of a run, played by a test: its connection to the channel of a:0."""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import TypeVar

from msgspec.structs import replace

from placer.channel import frames
from placer.channel.frames import (
    Beat,
    Frame,
    Goodbye,
    Hello,
    Identity,
    Piece,
    Refusal,
    Welcome,
    encode,
)
from placer.channel.keys import RunKey
from placer.channel.sockets import unix_address

Kind = TypeVar("Kind", bound=Frame)
JOB = "test job"
NONCE = b"n" * 32


class RawNode:
    """A connection to a:0, over which a test sends and receives frames."""

    def __init__(
        self, transport: str, addresses: Mapping[str, str], key: RunKey | None = None
    ) -> None:
        self.port = int(addresses["a:0"].rpartition(":")[2])
        self.transport = transport
        self.key = key
        self.connection = self._connect()

    def __enter__(self) -> RawNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def _connect(self) -> socket.socket:
        if self.transport == "shared":
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(unix_address(JOB, "a:0", self.port))
        else:
            connection = socket.create_connection(("127.0.0.1", self.port))
        connection.settimeout(10)
        return connection

    def send(self, *items: bytes | int) -> None:
        """Send bytes, and file descriptors with the bytes that follow them, as far as
        the node accepts them; the descriptors are closed."""
        file: int | None = None
        for item in items:
            if isinstance(item, int):
                file = item
                continue
            with suppress(BrokenPipeError, ConnectionResetError):
                if file is not None:
                    sent = socket.send_fds(self.connection, [item], [file])
                    item = item[sent:]
                self.connection.sendall(item)
            if file is not None:
                os.close(file)
                file = None

    def read(self) -> Frame:
        """Return the next frame that arrives, without its payload."""
        data = self._read_bytes(64)
        data += self._read_bytes(frames.size_of(memoryview(data)) - 64)
        frame, _ = frames.decode(memoryview(data))
        if isinstance(frame, Piece):
            self._read_bytes(frame.nbytes)
        return frame

    def read_until(self, *kinds: type[Kind]) -> Kind:
        """Return the next frame of these kinds."""
        while not isinstance(frame := self.read(), kinds):
            pass
        return frame

    def _read_bytes(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.connection.recv(min(count, 1 << 20))
            assert part, "the node has ended the connection"
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def read_rest(self) -> bytes:
        """Return what arrives until the node ends the connection."""
        rest = b""
        with suppress(ConnectionResetError):  # it has not read all
            while part := self.connection.recv(1 << 16):
                rest += part
        return rest

    def finish(self, how: int = socket.SHUT_WR) -> None:
        """Send nothing any more."""
        with suppress(OSError):  # the node has ended the connection
            self.connection.shutdown(how)

    def end(self) -> None:
        """End the connection, also for a thread that still sends."""
        self.finish(socket.SHUT_RDWR)

    def leave(self) -> None:
        """End the run of b:0 in good order, without reading what it still gets."""
        self.send(encode(Goodbye()))
        self.end()

    def hello(self, welcome: bytes, **fields: object) -> bytes:
        """Return the HELLO of b:0, or one that differs in some fields, as the answer to
        a WELCOME."""
        identity = {"job": JOB, "build": "", "node": "b:0", "to": "a:0"}
        identity |= {"nodes": ["a:0", "b:0"], "attempt": 1}
        identity |= {name: fields.pop(name) for name in [*fields] if name in identity}
        rest = {"window": 64 << 20, "incarnation": 7, "nonce": NONCE, **fields}
        hello = Hello(Identity(**identity), **rest)
        if self.key is not None and "mac" not in fields:
            code = frames.to_msgpack([welcome, hello.nonce, hello])
            mac = hmac.digest(self.key.derive("hello"), code, sha256)
            hello = replace(hello, mac=mac)
        return encode(hello)

    def welcome(self) -> bytes:
        """Return the nonce of the node, which it sends first."""
        welcome = self.read()
        assert isinstance(welcome, Welcome)
        return welcome.nonce

    def refusal(self) -> str:
        """Return why the node refuses a HELLO."""
        answer = self.read()
        assert isinstance(answer, Refusal | Hello)
        return answer.why if isinstance(answer, Refusal) else answer.refusal

    def greet(self, **fields: object) -> Hello:
        """Send a HELLO; return the one of the node, which answers it.

        While the node tries to connect to b:0 itself, it refuses; then b:0 connects
        again, as a real node does.
        """
        self.send(self.hello(self.welcome(), **fields))
        answer = self.read()
        assert isinstance(answer, Hello), answer
        if answer.refusal == "the node is already connected":
            self.connection.close()
            self.connection = self._connect()
            return self.greet(**fields)
        assert not answer.refusal
        assert (answer.identity.node, answer.identity.to) == ("a:0", "b:0")
        return answer

    def join(self, **fields: object) -> Hello:
        """Connect as b:0; return the greeting of a:0."""
        answer = self.greet(**fields)
        self.send(encode(Beat()))
        return answer
