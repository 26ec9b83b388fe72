"""The pauses before a process that fails early is started again."""

from __future__ import annotations

from typing import Final

FIRST_PAUSE: Final = 1.0
"""Seconds before a process is started again that has ended twice without joining the others.
Each further time the pause is twice as long."""
LONGEST_PAUSE: Final = 30.0


def pause_before(ends: int) -> float:
    """Return the seconds before the next start of a process.

    Args:
        ends: how many of its starts in a row have ended before it had joined the others.

    >>> [pause_before(ends) for ends in (0, 1, 2, 3, 4, 9)]
    [0.0, 0.0, 1.0, 2.0, 4.0, 30.0]
    """
    return 0.0 if ends < 2 else min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (ends - 2))
