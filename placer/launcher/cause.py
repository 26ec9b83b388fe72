"""Which of all that was seen is the root cause of a failed run."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from placer.errors import RunError
from placer.launcher.node_events import Failed
from placer.launcher.node_process import Child

_LINE = 400
"""Characters of a log's last line that a message quotes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure: the node to blame, none where it is the whole run's, and what
    happened in words.

    `seen` is first-hand: the node's own report, or its process's end.
    """

    node: str
    text: str
    seen: bool


def of_report(event: Failed) -> Finding:
    """What a failed node reports: of itself, of another one, or of the whole run."""
    cause = event.cause
    said = [part.strip() for part in (cause.where, cause.what) if part.strip()]
    text = ": ".join(said) or event.message
    if not cause.node:
        return Finding("", text, event.root)
    # Some say themselves whom they speak of.
    for prefix in (f"{cause.node}: ", f"{cause.node} "):
        text = text.removeprefix(prefix)
    return Finding(cause.node, f"{cause.node} failed: {text}", event.root)


def of_end(child: Child) -> Finding:
    """What the end of a process tells that reported nothing."""
    status = child.status
    assert status is not None
    if status < 0:
        text = f"was killed by {_signal(-status)}"
    elif status == 0:
        text = "ended before the run did"
    else:
        last = last_line(child.log)
        text = f"ended with exit status {status}" + (f": {last}" if last else "")
    return Finding(child.node, f"{child.node} {text}", True)


def of_delay(child: Child, seconds: float | None) -> Finding:
    """A process that goes on when the run is over; `seconds` is how long it had."""
    within = "" if seconds is None else f" within {seconds:g} s of the run's end"
    return Finding(child.node, f"{child.node} did not end{within}", True)


def choose(found: list[Finding]) -> Finding | None:
    """The first that was seen first-hand, else the first that was heard of."""
    return next((f for f in found if f.seen), found[0] if found else None)


def error(finding: Finding, log: Path | None, *, frozen: bool) -> RunError:
    """The error that a run ends with; `frozen` is the blamed process's state."""
    return RunError(finding.text + _details(log, frozen))


def warning(finding: Finding, log: Path | None, *, frozen: bool) -> str:
    """What is said of a node that failed when the run had all that it needed of it."""
    text = f"{finding.text}, after the run had its result, which is complete"
    return text + _details(log, frozen)


def _details(log: Path | None, frozen: bool) -> str:
    text = ""
    if frozen:
        text += "\n  its process is frozen: it was stopped by a signal"
    if log is not None:
        text += f"\n  log: {log}"
    return text


def last_line(log: Path) -> str:
    """The last line of a log that says something, cut to a length for messages; none
    of a log that is gone."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 16 * _LINE))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return said[-1][:_LINE] if said else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
