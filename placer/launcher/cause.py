"""Finds the root cause of a failed run among the failures that the launcher saw."""

from __future__ import annotations

from dataclasses import dataclass

from placer.launcher.node_process import SSH_FAILED
from placer.launcher.watched_node import WatchedNode
from placer.runtime.control.events import NodeFailure, State
from placer.runtime.signals.signals import signal_name
from placer.system.files.last_line import last_line

COMMAND_NOT_FOUND = 127
"""The status of a shell for a command that it does not find."""
_SSH_HINT = "`ssh HOST true` must work without a question: see docs/machines.md"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a run.

    `node` is the node that failed, or empty if the failure is of the whole run; `text`
    says what happened. `first_hand` is true for the node's own report and for the end
    of its process, false for what another node reports about it. `is_interruption` is
    true if the node has ended the run because of a signal.
    """

    node: str
    text: str
    first_hand: bool
    is_interruption: bool = False


def failure_from_report(event: NodeFailure) -> Failure:
    """Return the failure that a node reports, of itself, another node or the run."""
    cause = event.cause
    parts = [part.strip() for part in (cause.where, cause.what) if part.strip()]
    text = ": ".join(parts) or event.message
    if not cause.node:
        return Failure("", text, event.root, cause.is_interruption)
    # The node's name may be at the start of the text already.
    for prefix in (f"{cause.node}: ", f"{cause.node} "):
        text = text.removeprefix(prefix)
    text = f"{cause.node} failed: {text}"
    return Failure(cause.node, text, event.root, cause.is_interruption)


def failure_from_exit(child: WatchedNode, last: State | None) -> Failure:
    """Return the failure of a process that ended without a report; `last` is the state
    that it last reported."""
    if child.job_failure:
        return Failure("", child.job_failure, True)
    status = child.exit_status
    if child.lost:
        text = f"the fork server {child.lost}, and all nodes end with it"
        return Failure("", text, True)
    where = f" at step {last.step} or later" if last is not None and last.step else ""
    why = f" ({child.why})" if child.why else ""
    if status is None:
        text = f"was lost{where}{why}"
    elif status < 0:
        text = f"was killed by {signal_name(-status)}{where}{why}"
    elif status == 0:
        text = "ended before the end of the run"
    elif child.by_ssh and status == SSH_FAILED and last is not None:
        text = f"was killed, or the ssh connection to it was lost{where}"
    elif child.by_ssh and status == SSH_FAILED:
        line = last_line(child.log) or "it says no reason"
        text = f"{child.node}: ssh to {child.host} failed: {line}\n  hint: {_SSH_HINT}"
        return Failure(child.node, text, True)
    else:
        line = last_line(child.log)
        text = f"ended with exit status {status}{why}" + (f": {line}" if line else "")
        if child.by_ssh and status == COMMAND_NOT_FOUND:
            text += "\n  hint: --python names the Python with placer on the machines"
    return Failure(child.node, f"{child.node} {text}", True)


def failure_from_delay(child: WatchedNode, seconds: float | None) -> Failure:
    """Return the failure of a process that runs on after the end of the run.

    `seconds` is how long it had to end, or None for a frozen process.
    """
    within = "" if seconds is None else f" within {seconds:g} s of the run's end"
    return Failure(child.node, f"{child.node} did not end{within}", True)


def choose_root_cause(failures: list[Failure]) -> Failure | None:
    """Return the first first-hand failure, otherwise the first failure, if any."""
    return next(
        (f for f in failures if f.first_hand), failures[0] if failures else None
    )
