"""A message that is sent while its arrays are still being written."""

from __future__ import annotations

from collections.abc import Callable


class OpenMessage:
    """A message whose arrays are written in order, each from its first element on.

    Args:
        send: sends the whole message; called by `end`.
    """

    def __init__(self, send: Callable[[], object]) -> None:
        self._send = send

    def written(self, array: int, stop: int) -> None:
        """Note that all arrays before one, and its elements before `stop`, do not change
        any more. They may be sent now."""

    def end(self) -> None:
        """Note that nothing changes any more, and send what has not been sent."""
        self._send()
