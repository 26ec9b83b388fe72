"""What nodes print and warn of, as their launcher shows it."""

from __future__ import annotations

import sys

from placer.launcher.node_events import Event, Output, Warned
from placer.printable import legible


def line_of(event: Output | Warned) -> str:
    """`worker:0| text` of what a node prints, `warning: text` of a warning, with a sign
    in place of what would steer a terminal."""
    before = f"{event.node}| " if isinstance(event, Output) else "warning: "
    return before + legible(event.text if isinstance(event, Output) else event.message)


def show_output(event: Event) -> None:
    """Print what a node prints or warns of to standard error, and nothing of other
    events."""
    if isinstance(event, Output | Warned):
        print(line_of(event), file=sys.stderr, flush=True)
