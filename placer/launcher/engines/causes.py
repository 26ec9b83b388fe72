"""Finds the node whose failure made an engine end the other nodes."""

from __future__ import annotations

from typing import Final

from placer.launcher.engines.engine import NodeEnded
from placer.runtime.control.events import FAILED_LINE
from placer.runtime.signals.signals import END_SIGNALS

_ROOT: Final = b'"root": true'
"""Part of the line of a failure that a node reports of itself."""


def tells_failure(line: bytes) -> bool:
    """Return True if a line of events reports that the node itself failed."""
    return line.startswith(FAILED_LINE) and _ROOT in line


def is_cause_of_failure(end: NodeEnded) -> bool:
    """Return True if a node was lost, or was killed by a signal that is not a request to
    end."""
    killed = end.status is not None and end.status < 0
    return end.status is None or (killed and -end.status not in END_SIGNALS)
