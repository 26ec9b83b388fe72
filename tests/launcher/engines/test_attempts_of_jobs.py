"""The attempts that an engine reads from the events of nodes."""

from __future__ import annotations

from placer.channel.cause import Cause
from placer.launcher.engines.attempts import last_attempt_of, lost_line
from placer.runtime.control.events import CUT_LINE, Start, State, write_event


def test_the_last_attempt_is_the_largest_that_a_whole_event_names():
    cause = Cause("ps:0", "", "lost its task")
    lost = lost_line("ps:0", 3, cause)
    start = write_event(Start(1, 9, 3, attempt=4)).rstrip()
    state = write_event(State("ps:0", "running")).rstrip()
    assert last_attempt_of("ps:0", [state], 1) == 1
    assert last_attempt_of("ps:0", [lost, state, start], 1) == 4
    assert last_attempt_of("ps:0", [lost], 5) == 5
    # The process was killed while it wrote the event.
    assert last_attempt_of("ps:0", [start[:-4] + CUT_LINE[:-1]], 1) == 1
