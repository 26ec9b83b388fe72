"""The pauses before a process is started again that fails early, or whose stream has failed."""

from __future__ import annotations

from typing import Final

FIRST_PAUSE: Final = 1.0
"""Seconds before a process is started again that has ended twice without joining the others.
Each further time the pause is twice as long."""
LONGEST_PAUSE: Final = 30.0
FIRST_OUTAGE: Final = 2.0
"""Seconds before a function of a stream that has raised is called again. Each further time the
pause is three times as long: that of three restarts is more than a minute."""
LONGEST_OUTAGE: Final = 60.0


def pause_before(ends: int) -> float:
    """Return the seconds before the next start of a process.

    Args:
        ends: how many of its starts in a row have ended before it had joined the others.

    >>> [pause_before(ends) for ends in (0, 1, 2, 3, 4, 9)]
    [0.0, 0.0, 1.0, 2.0, 4.0, 30.0]
    """
    return 0.0 if ends < 2 else min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (ends - 2))


def pause_of_outage(failures: int) -> float:
    """Return the seconds before the next start of a process whose stream has failed.

    Args:
        failures: how many attempts in a row have failed without progress; 0 if the last one had
            progress.

    >>> [pause_of_outage(failures) for failures in (0, 1, 2, 3, 4, 9999)]
    [2.0, 6.0, 18.0, 54.0, 60.0, 60.0]
    """
    return min(LONGEST_OUTAGE, FIRST_OUTAGE * 3.0 ** min(failures, 9))
