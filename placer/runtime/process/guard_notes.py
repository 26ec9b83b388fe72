"""Tells the guard of a node's process how the process goes on.

The guard (`placer.launcher.guard`) starts the process again when it ends before its part of
the run is done, unless the run is over. The process writes its notes to a pipe, one per line.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

from placer.runtime.control.events import (
    CONNECTING,
    DONE,
    IMPORTING,
    RUNNING,
    Event,
    Left,
    NodeFailure,
    State,
)
from placer.runtime.control.execution import Execution

JOINED: Final = "joined"
"""The process has joined the other nodes."""
TRAINS: Final = "trains"
"""The run has begun to train."""
FAILED: Final = "failed"
"""The process has reported the error for which it ends. The run may go on."""
OUTAGE: Final = "outage"
"""The function of a stream has raised that error."""
OVER: Final = "over"
"""The run is over: the process must not be started again."""
FINISHED: Final = "done"
"""The node has done its part of a run with a result."""
ATTEMPT: Final = "attempt "
"""Followed by the number of the attempt that the process begins."""


class GuardNotes:
    """Writes the notes of a process to its guard.

    Args:
        fd: the end of the pipe to write to.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._written: set[str] = set()

    def begin(self, execution: Execution) -> None:
        """Write that an attempt begins."""
        self.write(f"{ATTEMPT}{execution.attempt}")

    def note(self, event: Event) -> None:
        """Write the note that follows from an event of the process, if any."""
        match event:
            case State(state=state):
                if state not in (IMPORTING, CONNECTING):
                    self.write(JOINED)
                if state == RUNNING:
                    self.write(TRAINS)
                if state == DONE:
                    self.write(FINISHED)
            case Left(root=True):
                self.write(FAILED)
                if event.cause.is_outage:
                    self.write(OUTAGE)
            case Left():
                _say(f"{event.message}; all nodes go back to the last checkpoint")
            case NodeFailure():
                self.write(OVER)

    def write(self, note: str) -> None:
        """Write a note, if it is a new one."""
        if note in self._written:
            return
        self._written.add(note)
        with suppress(BrokenPipeError):  # The guard has ended, and ends this process.
            os.write(self._fd, f"{note}\n".encode())


def _say(text: str) -> None:
    with suppress(OSError):
        print(f"warning: {text}", file=sys.stderr, flush=True)
