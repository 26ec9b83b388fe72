"""Channels of nodes that are threads of one process, in a run with several processes.

The nodes of a process share its `Session`: its mailbox, and one connection to each other process.
A message to another thread of the same process is passed on without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping

from placer.channel.cause import Cause
from placer.channel.interface import Channel
from placer.channel.session import Session
from placer.channel.types import Bytes


def thread_channels(session: Session) -> Mapping[str, Channel]:
    """Return the channel of each node of a session's process. It is the session itself
    if the process has one node, and otherwise one channel per thread."""
    if session.own_nodes != (session.node,):
        session.channels = tuple(
            ThreadChannel(session, node) for node in session.own_nodes
        )
    return {channel.node: channel for channel in session.channels}


class ThreadChannel(Channel):
    """The channel of a node that shares the session of its process; see `Channel`."""

    def __init__(self, session: Session, node: str) -> None:
        super().__init__(node, session.mailbox, session)
        self._session = session

    def join(self) -> None:
        self._session.join()

    def abort(self, cause: Cause) -> None:
        self._session.abort(cause)
        self._session.on_abort(cause)  # for the other threads

    def streams(self) -> dict[str, str]:
        streams = self._session.streams()
        return {node: streams[node] for node in streams if node != self.node}

    def share(self, nbytes: int) -> Bytes:
        return self._session.share(nbytes)

    def close(self) -> None:
        pass  # the process closes its session when all its nodes have ended

    def check_open(self) -> None:
        self._session.check_open()
