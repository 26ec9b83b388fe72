"""Describes errors of files that a run writes."""

from __future__ import annotations

import errno


def is_full(error: Exception) -> bool:
    """Whether an error means that the disk or the quota is full."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, OSError) and error.errno in full


def describe(error: Exception) -> str:
    """Return the text of an error, without the path of a temporary file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
