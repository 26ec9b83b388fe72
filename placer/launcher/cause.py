"""Finds the root cause of a failed run among the failures that the launcher saw."""

from __future__ import annotations

from dataclasses import dataclass

from placer.launcher.node_process import SSH_FAILED
from placer.launcher.other_python import hint_without_placer
from placer.launcher.watched_node import WatchedNode
from placer.runtime.control.events import Left, NodeFailure, State
from placer.runtime.signals.signals import signal_name
from placer.system.files.last_line import last_line

COMMAND_NOT_FOUND = 127
"""The exit status of a shell if it does not find the command."""
_PYTHON_HINT = "set --python to a Python with placer on the machines"
_SSH_HINT = "`ssh HOST true` must work without a prompt: see docs/how-to/machines.md"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a run.

    Attributes:
        node: the node that failed; empty if the whole run failed.
        text: a description of the failure.
        first_hand: True if the node itself reported the failure or its process ended;
            False if another node reported it.
        is_interruption: True if a signal made the node end the run.
        is_outage: True if the function of a stream has raised.
    """

    node: str
    text: str
    first_hand: bool
    is_interruption: bool = False
    is_outage: bool = False

    @property
    def what(self) -> str:
        """The description without the name of the node."""
        return self.text.removeprefix(f"{self.node} ").removeprefix("failed: ")


def failure_from_report(event: NodeFailure | Left) -> Failure:
    """Return the failure in a report, which can concern the reporting node, another node
    or the run."""
    cause = event.cause
    parts = [part.strip() for part in (cause.where, cause.what) if part.strip()]
    text = ": ".join(parts) or event.message
    if not cause.node:
        return Failure("", text, event.root, cause.is_interruption)
    # The text may already start with the name of the node.
    for prefix in (f"{cause.node}: ", f"{cause.node} "):
        text = text.removeprefix(prefix)
    # For a process that was ended, its guard or the engine reports the end.
    was_ended = isinstance(event, Left) and event.root and not cause.is_error
    failed = "" if was_ended and not cause.where else "failed: "
    text = f"{cause.node} {failed}{text}"
    return Failure(cause.node, text, event.root, cause.is_interruption, cause.is_outage)


def failure_from_exit(child: WatchedNode, last: State | None) -> Failure:
    """Return the failure of a process that ended without a report, after its last state."""
    if child.job_failure:
        return Failure("", child.job_failure, True)
    status = child.exit_status
    if child.lost:
        text = f"the fork server {child.lost}, which ends all nodes"
        return Failure("", text, True)
    where = f" at step {last.step} or later" if last is not None and last.step else ""
    why = f" ({child.why})" if child.why else ""
    if status is None:
        text = f"was lost{where}{why}"
    elif status < 0:
        text = f"was killed by {signal_name(-status)}{where}{why}"
    elif status == 0:
        text = "ended before the end of the run"
    elif child.by_ssh and status == SSH_FAILED and child.has_spoken:
        text = f"was killed or lost its ssh connection{where}"
    elif child.by_ssh and status == SSH_FAILED:
        line = last_line(child.log) or "no reason was given"
        text = f"{child.node}: ssh to {child.host} failed: {line}\n  hint: {_SSH_HINT}"
        return Failure(child.node, text, True)
    else:
        line = last_line(child.log)
        text = f"ended with exit status {status}{why}" + (f": {line}" if line else "")
        if child.by_ssh and last is None:
            is_found = status != COMMAND_NOT_FOUND
            hint = hint_without_placer(line, _PYTHON_HINT) if is_found else _PYTHON_HINT
            text += f"\n  hint: {hint}" if hint else ""
    return Failure(child.node, f"{child.node} {text}", True)


def failure_from_delay(child: WatchedNode, seconds: float | None) -> Failure:
    """Return the failure of a process that still runs `seconds` after the end of the run;
    `seconds` is None for a frozen process."""
    within = "" if seconds is None else f" within {seconds:g} s of the run's end"
    return Failure(child.node, f"{child.node} did not end{within}", True)


def choose_root_cause(failures: list[Failure]) -> Failure | None:
    """Return the first first-hand failure, or else the first failure, if any."""
    return next(
        (f for f in failures if f.first_hand), failures[0] if failures else None
    )
