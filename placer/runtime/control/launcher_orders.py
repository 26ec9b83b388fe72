"""Defines the bytes that a launcher writes to the control node's pipe for orders."""

from __future__ import annotations

from typing import Final

STOP_ORDER: Final = b"\n"
"""Order to stop the run, after the same step on all nodes."""
STEP_CALLED: Final = b"."
"""Note that the callbacks have finished one more step."""
