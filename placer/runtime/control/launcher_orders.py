"""What a launcher writes to the pipe for orders of the control node."""

from __future__ import annotations

from typing import Final

STOP_ORDER: Final = b"\n"
"""Stop the run, after the same step on all nodes."""
STEP_CALLED: Final = b"."
"""The callbacks have had the next step."""
