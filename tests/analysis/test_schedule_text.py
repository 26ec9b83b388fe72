"""The text form of a schedule, and its drawing."""

import pytest

from placer import GraphError
from placer.analysis.schedule import Schedule, ScheduledTask
from placer.analysis.schedule_text import parse_schedule, print_schedule
from placer.report.pipeline import draw_schedule

TEXT = """\
schedule 1f1b microbatches(2) {
  worker:0 forward.0 forward.1 totals backward.0 backward.1
  ps:0 forward_2.0 forward_2.1
}
"""


def test_parse_schedule_reads_what_print_schedule_writes():
    schedule = parse_schedule(TEXT)
    assert schedule.tasks["ps:0"] == (
        ScheduledTask("forward_2", 0),
        ScheduledTask("forward_2", 1),
    )
    assert schedule.task_names("worker:0")[2] == "totals"
    assert (schedule.policy, schedule.microbatches) == ("1f1b", 2)
    assert print_schedule(schedule) == TEXT


@pytest.mark.parametrize(
    ("line", "wrong", "message"),
    [
        (1, "schedule microbatches(2) {", "expected 'schedule POLICY microbatches(C"),
        (2, "  worker:0", "expected 'NODE:ID TASK TASK ...'"),
        (2, "  worker:0 Forward.0", "'Forward.0' is not a task such as forward.0"),
        (2, "  ps:0 forward.0 forward.1", "'ps:0' has two lines"),
        (3, "  ps:0 forward.1 forward.0", "'forward' must run once, or for the microb"),
        (3, "  ps:0 forward.0", "'forward' must run once, or for the microbatches 0-1"),
        (3, "", "expected '}'"),
    ],
)
def test_invalid_text_is_an_error_at_its_line(line, wrong, message):
    lines = TEXT.splitlines()
    lines[line - 1 :] = [wrong, *lines[line:]] if wrong else []
    with pytest.raises(GraphError) as caught:
        parse_schedule("\n".join(lines))
    assert caught.value.message.startswith(message)
    assert caught.value.span is not None
    if "two lines" in message:
        line += 1  # the error is at the second line
    elif not wrong:
        line -= 1  # the error is at the last line
    assert caught.value.span.line == line


def test_the_drawing_has_a_row_for_each_node():
    tasks = {
        "worker:0": (
            ScheduledTask("forward", 0, 0, 4),
            ScheduledTask("backward", 0, 8, 12),
        ),
        "worker:1": (ScheduledTask("both", 0, 4, 8),),
    }
    rows = [line.plain for line in draw_schedule(Schedule("1f1b", 1, tasks), 28)]
    assert rows[:2] == [
        "worker:0 0   ····0     67 %",
        "worker:1 ····0   ····  33 %",
    ]
    assert rows[2].split()[:3] == ["forward", "backward", "both"]


def test_the_drawing_has_a_row_for_each_device_of_a_node():
    tasks = {
        "worker:0": (
            ScheduledTask("forward", 0, 0, 4, ("gpu:0",)),
            ScheduledTask("forward_backward", 0, 4, 8, ("gpu:1", "gpu:2-3")),
            ScheduledTask("backward", 0, 8, 12, ("gpu:0",)),
        ),
        "worker:1": (ScheduledTask("both", 0, 4, 8, ("cpu:0",)),),
    }
    rows = [line.plain for line in draw_schedule(Schedule("1f1b", 1, tasks), 36)]
    assert rows[:4] == [
        "worker:0 gpu:0   0   ····0     67 %",
        "worker:0 gpu:1   ····0   ····  33 %",
        "worker:0 gpu:2-3 ····0   ····  33 %",
        "worker:1         ····0   ····  33 %",
    ]
