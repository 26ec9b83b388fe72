"""Waits for a file descriptor to become readable."""

from __future__ import annotations

import select


def is_readable(fd: int, seconds: float | None) -> bool:
    """Return True if a descriptor becomes readable within `seconds`; None waits
    forever. The pidfd of a process becomes readable when the process ends."""
    poll = select.poll()  # `select.select` rejects descriptors above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1000 * seconds))
