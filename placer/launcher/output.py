"""Prints the output and the warnings of nodes."""

from __future__ import annotations

import sys

from placer.launcher.node_events import Event, NodeWarning, Output
from placer.printable import make_printable


def format_output(event: Output | NodeWarning) -> str:
    """Return `worker:0| text` for output, `warning: text` for a warning.

    Control characters are replaced, so that the text cannot steer a terminal.
    """
    prefix = f"{event.node}| " if isinstance(event, Output) else "warning: "
    return prefix + make_printable(
        event.text if isinstance(event, Output) else event.message
    )


def show_output(event: Event) -> None:
    """Print an event to standard error if it is output or a warning."""
    if isinstance(event, Output | NodeWarning):
        print(format_output(event), file=sys.stderr, flush=True)
