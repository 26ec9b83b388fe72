"""A schedule as text, and drawn."""

import pytest

from placer import GraphError
from placer.analysis.schedule import Schedule, Turn
from placer.analysis.schedule_text import parse_schedule, print_schedule
from placer.report.pipeline import drawn

TEXT = """\
schedule 1f1b microbatches(2) {
  worker:0 forward.0 forward.1 totals backward.0 backward.1
  ps:0 forward_2.0 forward_2.1
}
"""


def test_a_schedule_is_read_as_it_is_printed():
    found = parse_schedule(TEXT)
    assert found.turns["ps:0"] == (Turn("forward_2", 0), Turn("forward_2", 1))
    assert found.of("worker:0")[2] == "totals"
    assert (found.policy, found.microbatches) == ("1f1b", 2)
    assert print_schedule(found) == TEXT


@pytest.mark.parametrize(
    ("line", "wrong", "message"),
    [
        (1, "schedule microbatches(2) {", "expected 'schedule POLICY microbatches(C"),
        (2, "  worker:0", "expected 'NODE:ID TURN TURN ...'"),
        (2, "  worker:0 Forward.0", "'Forward.0' is no turn, as forward.0 is"),
        (2, "  ps:0 forward.0 forward.1", "'ps:0' has its turns twice"),
        (3, "  ps:0 forward.1 forward.0", "'forward' must run once, or for the microb"),
        (3, "  ps:0 forward.0", "'forward' must run once, or for the microbatches 0-1"),
        (3, "", "expected '}'"),
    ],
)
def test_text_that_is_no_schedule_is_told_with_its_line(line, wrong, message):
    lines = TEXT.splitlines()
    lines[line - 1 :] = [wrong, *lines[line:]] if wrong else []
    with pytest.raises(GraphError) as caught:
        parse_schedule("\n".join(lines))
    assert caught.value.message.startswith(message)
    assert caught.value.span is not None
    if "twice" in message:
        line += 1  # the second is one too many
    elif not wrong:
        line -= 1  # the last that there is
    assert caught.value.span.line == line


def test_a_schedule_is_drawn_with_a_row_for_each_node():
    turns = {
        "worker:0": (Turn("forward", 0, 0, 4), Turn("backward", 0, 8, 12)),
        "worker:1": (Turn("both", 0, 4, 8),),
    }
    rows = [line.plain for line in drawn(Schedule("1f1b", 1, turns), 28)]
    assert rows[:2] == [
        "worker:0 0   ····0     67 %",
        "worker:1 ····0   ····  33 %",
    ]
    assert rows[2].split()[:3] == ["forward", "backward", "both"]


def test_devices_that_take_turns_have_a_row_each():
    turns = {
        "worker:0": (
            Turn("forward", 0, 0, 4, ("gpu:0",)),
            Turn("forward_backward", 0, 4, 8, ("gpu:1", "gpu:2-3")),
            Turn("backward", 0, 8, 12, ("gpu:0",)),
        ),
        "worker:1": (Turn("both", 0, 4, 8, ("cpu:0",)),),
    }
    rows = [line.plain for line in drawn(Schedule("1f1b", 1, turns), 36)]
    assert rows[:4] == [
        "worker:0 gpu:0   0   ····0     67 %",
        "worker:0 gpu:1   ····0   ····  33 %",
        "worker:0 gpu:2-3 ····0   ····  33 %",
        "worker:1         ····0   ····  33 %",
    ]
