"""Finds out which nodes have access to a folder of the control node."""

from __future__ import annotations

import secrets
from pathlib import Path

from placer.errors import CheckpointError
from placer.runtime.control.barrier import VISIBLE, barrier
from placer.runtime.control.events import NodeWarning
from placer.runtime.control.execution import Execution

_ONE_COPY = (
    "only the machine of {} has the folder of checkpoints '{}': if this machine is lost, the run"
    " begins again from the first step; use a folder that all machines share"
)


def share_folder(execution: Execution, folder: Path, what: str) -> tuple[str, bool]:
    """Return the run's name in temporary folders, and whether this node has access to `folder`.

    The control node writes a file to the folder, and the other nodes try to read it. It warns if
    a run with `--restarts` could lose the folder with one machine. All nodes call this at the
    same point.

    Args:
        what: the contents of the folder: `checkpoints` or `publications`.

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
                f"{what} cannot be written to '{folder}': {error.strerror}"
            ) from error
    run = barrier(plan, channel, {"run": run}, VISIBLE)[0]["run"]
    try:
        sees = (folder / _sign(run)).read_text() == run
    except OSError:
        sees = False
    reports = barrier(plan, channel, {"sees": sees}, VISIBLE)
    if execution.is_control:
        loses = what == "checkpoints" and execution.options.restarts
        if loses and not all(each["sees"] for each in reports):
            execution.report(NodeWarning(_ONE_COPY.format(plan.control, folder)))
        (folder / _sign(run)).unlink(missing_ok=True)
    return run, sees


def _sign(run: str) -> str:
    return f".run-{run}.tmp"
