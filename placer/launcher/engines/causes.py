"""Tells the failure of a node from the ends that follow it: an engine ends the other
nodes."""

from __future__ import annotations

from typing import Final

from placer.launcher.engines.engine import NodeEnded
from placer.runtime.control.events import FAILED_LINE
from placer.runtime.signals.signals import END_SIGNALS

_ROOT: Final = b'"root": true'
"""Part of the line of a failure that is the node's own."""


def tells_failure(line: bytes) -> bool:
    """Whether a line of events says that the node itself has failed."""
    return line.startswith(FAILED_LINE) and _ROOT in line


def is_cause_of_failure(end: NodeEnded) -> bool:
    """Whether a node was lost, or killed by a signal that is no request to end."""
    killed = end.status is not None and end.status < 0
    return end.status is None or (killed and -end.status not in END_SIGNALS)
