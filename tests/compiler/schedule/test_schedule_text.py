"""The text form of a schedule, and its drawing."""

from placer.compiler.schedule.schedule import Schedule, ScheduledTask
from placer.compiler.schedule.schedule_text import print_schedule
from placer.report.pipeline import draw_schedule


def test_a_schedule_has_a_line_for_each_node():
    forward = tuple(ScheduledTask("forward", i) for i in range(2))
    tasks = {"worker:0.1": (*forward, ScheduledTask("totals", None)), "ps:0": forward}
    assert (
        print_schedule(Schedule("1f1b", 2, tasks))
        == """\
schedule 1f1b microbatches(2) {
  worker:0.1 forward.0 forward.1 totals
  ps:0 forward.0 forward.1
}
"""
    )


def test_the_drawing_has_a_row_for_each_node():
    tasks = {
        "worker:0": (
            ScheduledTask("forward", 0, 0, 4),
            ScheduledTask("backward", 0, 8, 12),
        ),
        "worker:1": (ScheduledTask("totals", 0, 4, 8),),
    }
    rows = [line.plain for line in draw_schedule(Schedule("1f1b", 1, tasks), 28)]
    assert rows[:2] == [
        "worker:0 |f0 |···|b0   67 %",
        "worker:1 ····|t0 |···  33 %",
    ]
    assert rows[2] == "f forward  b backward  t totals"


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
        "worker:0 gpu:0   |f0 |···|b0   67 %",
        "worker:0 gpu:1   ····|fb0|···  33 %",
        "worker:0 gpu:2-3 ····|fb0|···  33 %",
        "worker:1         ····|b0 |···  33 %",
    ]


def test_tasks_next_to_each_other_have_a_border():
    tasks = {
        "worker:0": tuple(
            ScheduledTask("forward_2", i, start, start + 3)
            for i, start in enumerate((0, 3, 7))
        )
    }
    rows = [line.plain for line in draw_schedule(Schedule("1f1b", 1, tasks), 36)]
    assert rows[0] == "worker:0 |f2.0 |f2.1 |·|f2.2   90 %"
