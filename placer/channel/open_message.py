"""A message that is sent while its arrays are still being written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _send_later(array: int, stop: int) -> None:
    """Leave all of a message to its end."""


@dataclass(frozen=True, slots=True)
class OpenMessage:
    """A message whose arrays are written in order, each from its first element on.

    Attributes:
        end: notes that nothing changes any more, and sends what has not been sent.
        written: notes that all arrays before the one of a number, and its elements before
            another number, do not change any more; they may be sent now.
    """

    end: Callable[[], object]
    written: Callable[[int, int], object] = _send_later
