"""Channels between nodes of which several are threads of one process.

The nodes of a process share its `Session`: one connection for each pair of processes. The
key of a message says between which threads it goes. A message to another thread of the same
process is passed on without a copy, as between threads in general (`memory`): it is only
put into the mailbox that they share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from placer.channel import payload
from placer.channel.cause import Cause
from placer.channel.mailbox import Wait
from placer.channel.memory import read_only_views
from placer.channel.message import Message
from placer.channel.open_message import OpenMessage
from placer.channel.protocol import Channel
from placer.channel.session import Session
from placer.channel.types import Array, Key, Lane, Piece

Address = tuple[str, int]
"""A node: its process, and the number of its thread."""


def thread_channels(
    session: Session, addresses: Mapping[str, Address]
) -> dict[str, Channel]:
    """Return the channels of the nodes that are threads of this process.

    Args:
        session: the channel of the process, whose nodes are processes.
        addresses: the process and the thread of every node of the run.

    Returns:
        The channel of each node of this process. Each of them may be joined; closing one
        does nothing, because whoever opened the session closes it.
    """
    threads = _Threads(session)
    return {
        # A channel in all but its class, which has a mailbox of its own.
        node: cast(Channel, _ThreadChannel(session, threads, node, addresses))
        for node, (process, _) in addresses.items()
        if process == session.node
    }


class _Threads:
    """What the channels of one process share: which of them a thread of the program
    belongs to, and how each waits."""

    def __init__(self, session: Session) -> None:
        self._of_thread = threading.local()
        self.join_lock = threading.Lock()
        self.joined = False
        session.mailbox.accept_own()
        session.mailbox.wrap_wait(self._wrap)

    def enter(self, channel: _ThreadChannel) -> None:
        """Note that this thread belongs to the node of a channel."""
        self._of_thread.channel = channel

    def _wrap(self, wait: Wait) -> Wait:
        def wait_as_node(*what: Any, **more: Any) -> None:
            channel: _ThreadChannel | None = getattr(self._of_thread, "channel", None)
            wraps = channel.wraps if channel is not None else ()
            wrapped = wait
            for wrap in wraps:
                wrapped = wrap(wrapped)
            wrapped(*what, **more)

        return wait_as_node


@dataclass(slots=True)
class _ThreadChannel:
    """The channel of a node that shares its process's session; see `Channel`."""

    session: Session
    threads: _Threads
    node: str
    addresses: Mapping[str, Address]
    bytes_sent: int = 0
    """The payload bytes of messages to other processes."""
    wraps: list[Callable[[Wait], Wait]] = field(default_factory=list)
    _names: dict[Address, str] = field(init=False)
    _thread: int = field(init=False)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._names = {address: name for name, address in self.addresses.items()}
        _, self._thread = self.addresses[self.node]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def join(self) -> None:
        """Wait until all processes are connected."""
        with self.threads.join_lock:
            if not self.threads.joined:
                self.session.join()
                self.threads.joined = True

    def send(
        self, to: str, key: Key, arrays: Sequence[Array], *, follows: bool = False
    ) -> None:
        """Send a message; see `Channel.send`."""
        self.threads.enter(self)
        process, key = self._to(to, key)
        if process != self.session.node:
            self.session.send(process, key, arrays, follows=follows)
            self._count(arrays)
            return
        checked = payload.check_arrays(
            arrays, lambda: f"{key} from {self.node} to {to}"
        )
        self.session.pass_on(Message(process, key, 0, 0, read_only_views(checked)))

    def begin_send(self, to: str, key: Key, arrays: Sequence[Array]) -> OpenMessage:
        """Begin to send a message; see `Channel.begin_send`."""
        self.threads.enter(self)
        process, addressed = self._to(to, key)
        if process == self.session.node:
            return OpenMessage(lambda: self.send(to, key, arrays))
        self._count(arrays)
        return self.session.begin_send(process, addressed, arrays)

    def receive(
        self, source: str, key: Key, *, out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Receive a message; see `Channel.receive`."""
        self.threads.enter(self)
        return self.session.receive(*self._from(source, key), out=out)

    def expect(self, source: str, key: Key, out: Sequence[Array | None]) -> None:
        """Let a message arrive; see `Channel.expect`."""
        self.session.expect(*self._from(source, key), out)

    def receive_any(self, sources: Sequence[str], key: Key) -> tuple[str, list[Array]]:
        """Receive a message of any source; see `Channel.receive_any`."""
        source, _, arrays = self.receive_first([(each, key) for each in sources])
        return source, arrays

    def receive_first(
        self, addresses: Sequence[tuple[str, Key]]
    ) -> tuple[str, Key, list[Array]]:
        """Receive the message that comes first; see `Channel.receive_first`."""
        self.threads.enter(self)
        process, found, arrays = self.session.receive_first(
            [self._from(source, key) for source, key in addresses]
        )
        source = self._names[process, found.lane.source]
        return source, found._replace(lane=Lane()), arrays

    def pieces(self, source: str, key: Key) -> Iterator[Piece]:
        """Receive a message piece by piece; see `Channel.pieces`."""
        self.threads.enter(self)
        return self.session.pieces(*self._from(source, key))

    def pieces_of_first(
        self, addresses: Sequence[tuple[str, Key]]
    ) -> tuple[str, Key, Iterator[Piece]]:
        """Receive the message that comes first; see `Channel.pieces_of_first`."""
        self.threads.enter(self)
        process, found, pieces = self.session.pieces_of_first(
            [self._from(source, key) for source, key in addresses]
        )
        source = self._names[process, found.lane.source]
        return source, found._replace(lane=Lane()), pieces

    def listen(self, edge: int, call: Callable[[str], None]) -> None:
        """Call `call(source)` for each message of an edge; see `Channel.listen`."""

        def of_process(process: str, key: Key) -> None:
            call(self._names[process, key.lane.source])

        self.session.mailbox.listen(edge, of_process, self._thread)

    def wrap_wait(self, wrap: Callable[[Wait], Wait]) -> None:
        """Let the waits of this node's threads go through `wrap`; see `Mailbox`."""
        self.wraps.append(wrap)

    def abort(self, cause: Cause) -> None:
        """End the run on every node, also on the other threads of this process."""
        self.session.abort(cause)
        self.session.on_abort(cause)

    def close(self) -> None:
        """Do nothing: the process closes its session when all its nodes have ended."""

    def _count(self, arrays: Sequence[Array]) -> None:
        with self._counting:  # several threads of a node send
            self.bytes_sent += sum(array.nbytes for array in arrays)

    def _to(self, node: str, key: Key) -> tuple[str, Key]:
        """Return the process of a node, and the key of a message to it."""
        process, thread = self.addresses[node]
        return process, key._replace(lane=Lane(self._thread, thread))

    def _from(self, node: str, key: Key) -> tuple[str, Key]:
        """Return the process of a node, and the key of a message from it."""
        process, thread = self.addresses[node]
        return process, key._replace(lane=Lane(thread, self._thread))
