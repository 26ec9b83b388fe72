"""The interface of a transport whose sockets are read by the threads that wait."""

from __future__ import annotations

from typing import Protocol


class Reader(Protocol):
    """Reads the connections of a transport, one per peer.

    The mailbox calls it, and lets one thread at a time read each connection.
    """

    def read(self, peer: str, timeout: float) -> bool:
        """Handle the next frame of `peer`, waiting up to `timeout` seconds for it.

        False when no frame came. Returns early when the run has failed or ended.
        """
        ...

    def reading_stopped(self, peer: str) -> None:
        """Note that no thread reads the connection of `peer` any more.

        Called with the mailbox's lock held.
        """
        ...
