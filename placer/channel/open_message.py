"""A message that is sent while its arrays are still being written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _send_later(array: int, stop: int) -> None:
    """Do nothing, so that the whole message is sent at its end."""


@dataclass(frozen=True, slots=True)
class OpenMessage:
    """A message whose arrays are written in order, each from its first element on.

    Attributes:
        end: call it when all arrays are written; it sends the rest of the message.
        written: call it with the index of an array and an element: all elements before this
            position are final, and may be sent now.
    """

    end: Callable[[], object]
    written: Callable[[int, int], object] = _send_later
