"""Finds out which nodes have access to the control node's folder of checkpoints."""

from __future__ import annotations

import secrets
from pathlib import Path

from placer.errors import CheckpointError
from placer.runtime.control.barrier import VISIBLE, barrier
from placer.runtime.control.execution import Execution


def share_folder(execution: Execution, folder: Path) -> tuple[str, bool]:
    """Check whether this node has access to the control node's folder.

    The control node writes a file to the folder, and the other nodes try to read it. All
    nodes call this at the same point.

    Returns:
        The name of the run in temporary folders, and whether this node has access.

    Raises:
        CheckpointError: on the control node, if the folder cannot be written to.
    """
    plan, channel = execution.plan, execution.channel
    run = secrets.token_hex(8) if execution.is_control else ""
    if execution.is_control:
        try:
            (folder / _sign(run)).write_text(run)
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be written to '{folder}': {error.strerror}"
            ) from error
    run = barrier(plan, channel, {"run": run}, VISIBLE)[0]["run"]
    try:
        sees = (folder / _sign(run)).read_text() == run
    except OSError:
        sees = False
    barrier(plan, channel, {}, VISIBLE)
    if execution.is_control:
        (folder / _sign(run)).unlink(missing_ok=True)
    return run, sees


def _sign(run: str) -> str:
    """Return the name of the file that the nodes look for."""
    return f".run-{run}.tmp"
