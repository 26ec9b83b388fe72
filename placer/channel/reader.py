"""Carriers whose streams are read by the threads that wait."""

from __future__ import annotations

from typing import Protocol


class Reader(Protocol):
    """The streams of a carrier, one of each peer; one thread at a time reads each."""

    def read(self, peer: str, timeout: float) -> bool:
        """Take what comes next from `peer`, waiting up to `timeout` seconds for it.

        False when nothing came. Returns early when the run has failed or ended.
        """
        ...

    def left(self, peer: str) -> None:
        """No thread reads the stream of `peer` any more; called with the lock held."""
        ...
