"""The progress of a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from placer.channel.cause import Cause
from placer.plan.settings.evaluation_and_stopping import Best
from placer.report.progress.live_table import LiveTable
from placer.report.progress.plain_lines import PlainLines
from placer.report.progress.show import (
    show_progress,
    show_progress_of_script,
    show_warnings,
)
from placer.report.progress.sparkline import Series
from placer.report.progress.time_left import TimeLeft
from placer.report.progress.view import RunView, group_rows, node_rows, table_text
from placer.runtime.control.events import (
    WAITING_FOR_FILE,
    Event,
    FewerNodes,
    Left,
    NodeWarning,
    Notice,
    Output,
    PassBegun,
    Predicted,
    Recovered,
    Resumed,
    Start,
    State,
    Step,
)
from placer.runtime.control.table_counts import TableCounts
from placer.runtime.control.wait_counts import WaitCounts

NODES = ("worker:0", "ps:0")


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def step(number: int, accuracy: float | None = None, seconds: float = 0.0) -> Step:
    evaluation = None if accuracy is None else {"accuracy": accuracy}
    return Step(number, 1, {"loss": 1 / number}, evaluation, 1234.5, seconds)


def view(nodes: tuple[str, ...] = NODES, clock: Clock | None = None) -> RunView:
    return RunView("digits", nodes, clock or Clock())


def lines_of(out: io.StringIO) -> list[str]:
    return out.getvalue().splitlines()


def test_plain_lines_show_one_step_per_second_and_the_last() -> None:
    out, clock = io.StringIO(), Clock()
    with PlainLines(view(clock=clock), out) as show:
        show(Start(1, 9, 3))
        for number in range(1, 10):
            show(step(number))
            clock.now += 0.3
    assert [line.split("  ")[0] for line in lines_of(out)] == [
        "step 1 of 9",
        "step 5 of 9",
        "step 9 of 9",
    ]


def test_plain_lines_show_every_evaluation_with_its_step() -> None:
    out = io.StringIO()
    with PlainLines(view(), out) as show:
        show(step(1))
        show(step(2, accuracy=0.5))
        show(step(3, accuracy=0.75))
    assert lines_of(out) == [
        "step 1  epoch 1  loss 1  0:00 elapsed  1,234 samples/s",
        "step 2  epoch 1  loss 0.5  0:00 elapsed  1,234 samples/s",
        "evaluation after step 2  accuracy 0.5",
        "step 3  epoch 1  loss 0.3333  0:00 elapsed  1,234 samples/s",
        "evaluation after step 3  accuracy 0.75",
    ]


def test_a_line_has_the_totals_the_learning_rates_and_the_time_left() -> None:
    out, clock = io.StringIO(), Clock()
    with PlainLines(view(clock=clock), out) as show:
        show(Start(1, 100, 40))
        for number in range(1, 4):
            clock.now += 2.0
            rates = {"adam": 0.01, "sgd": 0.5 / number}
            show(Step(number, 1, {"loss": 0.5}, None, 64, 2.0 * number, 0.0, rates))
    assert lines_of(out)[-1] == (
        "step 3 of 100  epoch 1 of 3  loss 0.5  0:06 elapsed  3:14 left  2.0 s/step"
        "  64 samples/s"
    )
    assert show.run.learning_rates() == "learning rates: adam 0.01, sgd 0.1667"


def test_one_learning_rate_has_no_name() -> None:
    run = view()
    run.update(Step(1, 1, {}, learning_rates={"adam": 0.01}))
    assert run.learning_rates() == "learning rate 0.01"


def test_the_rows_of_a_prediction_are_counted() -> None:
    out, clock = io.StringIO(), Clock()
    with PlainLines(RunView("digits", NODES, clock, "row"), out) as show:
        assert show.run.position() == "no row yet"
        for rows in range(1000, 5001, 1000):
            show(Predicted(rows, 5000))
            clock.now += 0.8
    assert lines_of(out) == [
        "3,000 of 5,000 rows  0:01 elapsed  0:01 left  1,250 rows/s",
        "5,000 of 5,000 rows  0:03 elapsed  1,250 rows/s",
    ]
    assert show.run.share == 1


def test_plain_lines_show_the_nodes_waited_for_when_there_is_no_step() -> None:
    out, clock = io.StringIO(), Clock()
    with PlainLines(view(clock=clock), out) as show:
        for _ in range(12):
            show(State("worker:0", "connecting", 0, ("ps:0",)))
            clock.now += 0.5
    assert out.getvalue() == "worker:0 connecting (waits for ps:0)  ps:0 starting\n"


def test_plain_lines_name_nodes_that_do_the_same_together() -> None:
    out, clock = io.StringIO(), Clock()
    nodes = tuple(f"worker:{i}.{thread}" for i in range(4) for thread in range(2))
    with PlainLines(view((*nodes, "ps:0"), clock), out) as show:
        for node in nodes:
            show(State(node, "compiling"))
        clock.now += 5.0
        show(State("ps:0", "ready", 0, nodes))
    assert out.getvalue() == (
        "worker:0-3.0-1 compiling  ps:0 ready (waits for worker:0-3.0-1)\n"
    )


def test_plain_lines_show_the_number_of_rows_read() -> None:
    out, clock = io.StringIO(), Clock()
    with PlainLines(view(NODES[:1], clock), out) as show:
        for rows in (0, 700_000, 1_400_000):
            show(State("worker:0", "reading rows", rows=rows))
            clock.now += 5.0
    assert lines_of(out) == [
        "worker:0 reading rows: 700,000",
        "worker:0 reading rows: 1,400,000",
    ]


def seconds_left(
    start: Start,
    step_seconds: Callable[[int], float],
    evaluation_seconds: float = 0.0,
) -> list[tuple[float, float]]:
    """Run steps with these durations, with an evaluation wherever `start` has one;
    return the estimate after each step, and the time that was left."""
    estimates, now, seconds = TimeLeft(start), 0.0, 0.0
    shown = []
    for number in range(start.first_step, start.last_step + 1):
        seconds += step_seconds(number)
        evaluates = start.evaluation_every and (
            number % start.evaluation_every == 0 or number == start.last_step
        )
        took = evaluation_seconds if evaluates else 0.0
        at, now = seconds, seconds + took
        estimates.add(Step(number, 1, {}, {} if evaluates else None, 0, at, took), now)
        seconds = now
        shown.append((now, estimates.left(now)))
    return [(left, seconds - at) for at, left in shown if left is not None]


def test_the_first_step_does_not_count_for_the_time_left() -> None:
    shown = seconds_left(Start(1, 50, 50), lambda n: 30.0 if n == 1 else 0.5)
    assert len(shown) >= 45
    for estimate, left in shown:
        assert estimate == pytest.approx(left, abs=0.01)


def test_a_run_that_goes_on_counts_from_its_own_first_step() -> None:
    shown = seconds_left(Start(901, 1000, 50), lambda n: 9.0 if n == 901 else 0.25)
    for estimate, left in shown:
        assert estimate == pytest.approx(left, abs=0.01)


def test_evaluations_count_for_the_time_left_before_the_first_of_them() -> None:
    # An evaluation of six batches, whose rows cost a third of those of a step.
    start = Start(1, 105, 20, evaluation_every=20, rows=10, evaluation_rows=60)
    for estimate, left in seconds_left(start, lambda n: 0.5, evaluation_seconds=1.0):
        assert estimate == pytest.approx(left, abs=0.01)


def test_the_time_left_does_not_jump_when_steps_vary() -> None:
    start = Start(1, 400, 100, evaluation_every=100, rows=10, evaluation_rows=10)
    shown = seconds_left(start, lambda n: 0.2 + 0.1 * (n % 3), evaluation_seconds=3.0)
    ends = [estimate - left for estimate, left in shown]
    changes = [abs(b - a) for a, b in pairwise(ends)]
    # Of 130 seconds, to which the first evaluation adds 12.
    assert max(changes[10:]) < 4.0
    assert abs(ends[-1]) < 3.0


@pytest.fixture
def terminal() -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, color_system="standard", width=90
    )


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def screen(table: LiveTable, width: int, height: int) -> list[str]:
    """Return the lines of a table on a terminal of this size."""
    table.console = Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height
    )
    table.console.print(table.view())
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text_of(table.console)).splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    return [line.rstrip() for line in lines]


def test_the_live_table_shows_each_node_and_the_run(terminal: Console) -> None:
    table = LiveTable(view(), terminal)
    table(Start(1, 1200, 100))
    table(step(7, accuracy=0.5))
    table(State("worker:0", "running", 7, ("ps:0",), 1_500_000))
    lines = screen(table, 90, 24)
    assert lines[0] == "digits  step 7 of 1,200  epoch 1 of 12"
    assert lines[1].split()[-3:] == ["1%", "0:00", "elapsed"]
    assert lines[2] == "loss 0.1429  1,234 samples/s"
    assert lines[3].split() == ["node", "state", "step", "sent", "waits", "for"]
    assert lines[4].split() == ["worker:0", "running", "7", "1.5", "MB", "ps:0"]
    assert lines[5].split() == ["ps:0", "starting"]
    assert lines[6].split() == ["evaluation", "after", "step", "epoch", "accuracy"]
    assert lines[7].split() == ["7", "1", "0.5"]


def test_a_recovery_shows_the_nodes_that_it_waits_for(terminal: Console) -> None:
    table, out = LiveTable(view(), terminal), io.StringIO()
    lines = PlainLines(view(clock=(clock := Clock())), out)

    def show(*events: Event) -> str:
        """Show events; return the line about the recovery."""
        for event in events:
            table(event)
            lines(event)
        shown = [
            each for each in screen(table, 90, 24) if "rec" in each or "ag" in each
        ]
        return shown[0] if shown else ""

    states = [State(node, "running", 9, waits=WaitCounts(9, 3)) for node in NODES]
    lost = Cause("ps:0", "seen from worker:0", "lost")
    left = Left("worker:0", 1, lost, root=False)
    assert show(Start(1, 90, 10), step(9), *states) == ""
    assert show(left) == "recovering"
    assert screen(table, 90, 24)[-1].split() == ["ps:0", "recovering", "0", "bytes"]
    waiting = State("worker:0", "connecting", 0, ("ps:0",))
    assert show(waiting) == "recovering: waits for ps:0"
    worker = screen(table, 90, 24)[-2].split()
    assert worker == ["worker:0", "recovering", "0", "bytes", "ps:0"]
    importing = State("ps:0", "importing")
    assert show(importing, left) == "recovering: waits for ps:0 (importing)"
    clock.now += 5.0
    lines(waiting)
    assert lines_of(out)[-1] == (
        "recovering: waits for ps:0 (importing)"
        "  worker:0 recovering (waits for ps:0)  ps:0 importing"
    )
    recovered = Recovered(2, 4, 5, 1.5, "ps:0", "ps:0 was killed")
    assert show(recovered, *states) == "steps 5 to 9 are done again"
    assert show(step(10)) == ""
    # In asynchronous training, repeated steps are shown again.
    show(
        step(10, accuracy=0.5),
        step(11, accuracy=0.6),
        Recovered(3, 9, 2, 1.5, replaces=True),
    )
    assert show(step(11, accuracy=0.7)) == "steps 10 to 11 are done again"
    assert [each.eval for each in table.run.evaluations] == [
        {"accuracy": 0.7},
    ]
    assert show(step(12)) == ""
    # Another build has other nodes, which start anew.
    fewer = FewerNodes("ps:0 is lost", "build-2", {"worker:0": "worker/program.py"})
    assert show(fewer) == "recovering"
    rows = [line.split() for line in screen(table, 90, 24)]
    assert ["worker:0", "starting"] in rows
    assert ["ps:0"] not in [row[:1] for row in rows]


def test_a_small_terminal_shows_groups_of_nodes_and_the_last_evaluations(
    terminal: Console,
) -> None:
    nodes = tuple(f"worker:{i}" for i in range(1000))
    table = LiveTable(view(nodes), terminal)
    table(Start(1, 1200, 100))
    for i, node in enumerate(nodes):
        table(State(node, "running", 300 + i % 2, ("worker:7",) if i < 2 else ()))
    for number in range(10, 300, 10):
        table(step(number, accuracy=number / 1000))
    lines = screen(table, 50, 12)
    assert "worker:0-6,8-999  running  300-301  worker:7" in lines
    assert "worker:7          running      301" in lines
    assert lines[-1].split() == ["290", "1", "0.29"]
    assert "26 before" in [line.strip() for line in lines]
    assert len(screen(table, 100, 2000)) > 1029
    assert 1000 < len(screen(table, 200, 2000)) < 1010


def test_a_stream_shows_passes_and_waits_instead_of_a_total(terminal: Console) -> None:
    clock, out = Clock(), io.StringIO()
    table, lines = LiveTable(view(clock=clock), terminal), PlainLines(view(), out)
    lines.run.clock = clock
    counts = [0, 0]  # admitted and forgotten rows

    def show(*events: Event) -> list[str]:
        """Show events on both displays; return the new lines of text."""
        before = len(lines_of(out))
        for event in events:
            table(event)
            lines(event)
        return lines_of(out)[before:]

    def states(state: str, number: int, end: int = 0) -> list[State]:
        tables = {"emb": TableCounts(admitted=counts[0], forgotten=counts[1])}
        return [
            State("worker:0", state, number),
            State("ps:0", state, number, tables=tables, pass_end=end),
        ]

    def trained(first: int, number: int, loss: float = 0.0) -> Step:
        seconds, metrics = 0.25 * number, {"loss": loss} if loss else None
        return Step(number, first, {"loss": 1.0}, None, 9, seconds, 0.0, {}, metrics)

    show(Resumed(0, "kept/step-000000", is_stream=True, last="12.csv"))
    show(Start(1, 0, 0, 0, 100), *states("compiling", 0), *states(WAITING_FOR_FILE, 0))
    head = screen(table, 90, 24)
    assert head[1].endswith("━ 0:00 elapsed")
    assert "waiting for a file after 12.csv (0 s)" in head
    show(PassBegun(1, 1, 3, ("11.csv",), 300, 7, last="12.csv"))
    for number in (1, 2):
        clock.now += 2.0
        new = show(trained(1, number))
    assert new == [
        "step 2  pass 1, 2 of 3 steps  loss 1  0:04 elapsed  4.0 steps/s  9 samples/s"
    ]
    head = screen(table, 90, 24)
    assert head[0] == "digits  step 2  pass 1, 2 of 3 steps"
    assert head[1].endswith("67% of the pass  0:04 elapsed")
    assert "11.csv  300 rows (7 left over)" in head

    # The line of a pass counts the sweep after its last step.
    counts[0] = 40
    assert show(trained(1, 3, 0.5), *states("running", 3)) == []
    counts[1] = 4
    first, wait, *_ = [*show(*states(WAITING_FOR_FILE, 3, 3)), ""]
    assert (first, wait) == (
        "pass 1  11.csv  3 steps  300 rows (7 left over)  loss 0.5  400 samples/s"
        "  40 new rows, 4 removed",
        "",
    )
    waits = []
    for _ in range(45):
        clock.now += 60.0
        waits += show(*states(WAITING_FOR_FILE, 3, 3))
    assert waits == [
        f"waiting for a file after 12.csv ({minutes} min)"
        for minutes in (1, 2, 4, 8, 16, 32)
    ]
    assert "waiting for a file after 12.csv (45 min)" in screen(table, 90, 24)
    assert [table.is_due() for _ in range(2)] == [True, False]

    clock.now += 60.0
    assert show(State("worker:0", "running", 3)) == []  # the other node follows
    show(PassBegun(2, 4, 2, ("14.csv", "15.csv"), 200, 0, 2700.0))
    assert table.is_due()
    # The counts at the end of a pass may come before its last step.
    counts[0] += 2
    show(trained(2, 4), *states("running", 5, 5))
    counts[0] += 100
    assert show(*states("running", 5, 5), trained(2, 5, 0.25)) == [
        "pass 2  14.csv to 15.csv (2 files)  2 steps  200 rows  loss 0.25  400 samples/s"
        "  2 new rows, 0 removed  waited 45 min"
    ]
    show(PassBegun(3, 6, 1, ("16.csv",), 100), trained(3, 6), *states("failed", 6, 5))
    with lines:  # at the end, the last line is written in any case
        pass
    assert "100 new rows, 0 removed" in lines_of(out)[-1]
    assert table.run.position() == "step 6  pass 3, 1 of 1 steps"


def test_the_last_step_of_a_stream_is_shown_if_it_is_known() -> None:
    run = view(clock=(clock := Clock()))
    run.update(Start(1, 100, 0, 0, 4))
    run.update(PassBegun(1, 1, 50, ("1.csv",), 200))
    for number in (1, 2, 3):
        clock.now += 1.0
        run.update(step(number, seconds=1.0 * number))
    assert run.position() == "step 3 of 100  pass 1, 3 of 50 steps"
    assert (run.share, [*run.times()]) == (0.03, ["0:03 elapsed", "1:37 left"])
    run.update(PassBegun(2, 4, 50, ("2.csv",), 200, waited=60.0))
    clock.now += 61.0
    run.update(step(4, seconds=64.0))
    assert "1.0 steps/s" in run.rates()
    run = view()
    run.update(Start(41, 100, 0))
    assert (run.position(), run.share) == ("step 40 of 100", 0.4)


def test_every_size_of_a_terminal_is_enough(terminal: Console) -> None:
    table = LiveTable(view(), terminal)
    for event in (Start(1, 9, 3), step(1, 0.5), step(2, 0.75), State("ps:0", "done")):
        table(event)
        for width in (20, 50, 80):
            for height in (8, 9, 10, 11, 12, 30):
                screen(table, width, height)


def test_the_live_table_shows_the_cursor_again_after_an_error(
    terminal: Console,
) -> None:
    with pytest.raises(KeyboardInterrupt), LiveTable(view(), terminal):
        raise KeyboardInterrupt
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert text_of(terminal).rfind(show) > text_of(terminal).rfind(hide) >= 0


def test_the_live_table_is_not_drawn_for_every_event(
    terminal: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", Clock())
    with LiveTable(view(), terminal) as show:
        for number in range(1, 1000):
            show(step(number))
    assert "step 999 " in text_of(terminal)
    assert text_of(terminal).count("digits") < 5


def test_output_of_a_node_is_above_the_live_table(
    terminal: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Stream(terminal=True))
    with LiveTable(view(), terminal) as show:
        show(Output("ps:0", "[bold]x" * 30))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text_of(terminal))
    printed = text.index("ps:0| " + "[bold]x" * 30)
    assert printed < text.rindex("digits")


@pytest.mark.parametrize("live", [True, False])
def test_output_of_a_node_goes_to_standard_error(
    terminal: Console, live: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        LiveTable(view(), terminal)
        if live
        else PlainLines(view(), io.StringIO()) as show
    ):
        show(Output("ps:0", "hello"))
    assert capsys.readouterr().err == "ps:0| hello\n"
    assert "hello" not in text_of(terminal)


def test_quiet_shows_warnings_only(capsys: pytest.CaptureFixture[str]) -> None:
    others = step(1, 0.5), Output("ps:0", "hello"), Notice("note"), Resumed(1, "kept")
    timing = Resumed(1, "kept", "it depends on timing", is_repeatable=False)
    left_out = Resumed(1, "kept", epoch=3, left_out=4, is_stream=True)
    differs = Resumed(1, "kept", "another jax")
    for event in (*others, timing, NodeWarning("beware"), left_out, differs):
        show_warnings(event)
    out, err = capsys.readouterr()
    assert not out
    assert [line.partition(", ")[2] for line in err.splitlines()] == [
        "",
        "with pass 3; 4 rows of pass 2 are left out",
        "not necessarily with the same bits as an uninterrupted run: another jax",
    ]
    assert err.startswith("warning: beware\n")


class Stream(io.StringIO):
    """A text stream that is a terminal, or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "term", "shown"),
    [
        (True, "xterm-256color", LiveTable),
        (True, "dumb", PlainLines),
        (False, "xterm-256color", PlainLines),
    ],
)
def test_the_table_is_for_terminals_only(
    terminal: bool, term: str, shown: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    # FORCE_COLOR, which rich obeys, must not make a file a terminal.
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(show_progress(view(), Stream(terminal)), shown)


@pytest.mark.parametrize(
    ("terminal", "progress", "shown"),
    [
        (True, None, LiveTable),
        (False, None, None),
        (False, True, PlainLines),
        (True, False, None),
    ],
)
def test_a_script_shows_progress_on_a_terminal_or_if_asked_to(
    terminal: bool,
    progress: bool | None,
    shown: type | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Stream(terminal))
    display = show_progress_of_script(view(), progress)
    assert display is None if shown is None else isinstance(display, shown)


def holding(node: str, rows: int, *names: str) -> State:
    """A server with sparse tables of so many rows."""
    counts = TableCounts(
        rows=rows,
        counted=3,
        nbytes=100 * rows,
        admitted=rows + 7,
        refused=5,
        forgotten=4,
        evicted=3,
        lookups=2000,
        hits=rows,
    )
    return State(node, "running", 7, tables=dict.fromkeys(names, counts))


def test_the_live_table_adds_up_what_servers_hold(terminal: Console) -> None:
    table = LiveTable(view(("worker:0", "ps:0", "ps:1")), terminal)
    table(step(7))
    table(State("worker:0", "running", 7))
    for node, rows in (("ps:0", 1000), ("ps:1", 500), ("ps:0", 1500)):
        table(holding(node, rows, "emb.table"))
    lines = screen(table, 80, 24)
    at = next(i for i, line in enumerate(lines) if line.startswith("table "))
    heads = ["table", "rows", "counted", "admitted", "refused", "forgotten"]
    heads += ["hit rate", "memory"]
    assert re.split("  +", lines[at]) == heads
    numbers = ["emb.table", "2,000", "6", "2,014", "10", "14", "50.0%", "200.0 kB"]
    assert re.split("  +", lines[at + 1]) == numbers
    assert lines[at + 2].startswith("node ")


def test_a_narrow_terminal_shows_new_and_removed_rows_in_full(
    terminal: Console,
) -> None:
    name = "user_and_item_interaction_vectors.table"
    counts = TableCounts(
        rows=123_456_789,
        counted=23_456_789,
        nbytes=10**11,
        since=400,
        admitted=223_456_789,
        refused=3_456_789_012,
        forgotten=100_000_000,
        evicted=5,
    )
    for width in (60, 80, 120):
        table = LiveTable(view(("ps:0",)), terminal)
        table(State("ps:0", "running", 7, tables={name: counts}))
        lines = screen(table, width, 24)
        at = next(i for i, line in enumerate(lines) if line.startswith("table "))
        assert lines[at - 1] == "since step 400: admitted, refused, forgotten, hit rate"
        cells = dict(zip(lines[at].split(), lines[at + 1].split(), strict=False))
        assert cells["rows"] == "123,456,789"
        assert cells["admitted"] == "223,456,789"
        assert cells["forgotten"] == "100,000,005"
        assert cells["table"].startswith("user_and_item_inter")
        assert (cells["table"] == name) == (width >= 80)


def test_a_small_terminal_adds_up_the_last_tables(terminal: Console) -> None:
    table = LiveTable(view(("ps:0",)), terminal)
    table(holding("ps:0", 1000, *(f"t{i}" for i in range(40))))
    lines = screen(table, 60, 12)
    at = next(i for i, line in enumerate(lines) if line.startswith("table "))
    assert [line.split()[0] for line in lines[at + 1 : at + 4]] == ["t0", "t1", "38"]
    assert lines[at + 3].split()[:3] == ["38", "others", "38,000"]
    assert lines[at + 4].startswith("node ")


def test_plain_lines_show_tables_with_an_evaluation_and_every_ten_seconds() -> None:
    out, clock = io.StringIO(), Clock()
    with PlainLines(view(clock=clock), out) as show:
        show(step(1))
        show(holding("ps:0", 1000, "emb.table"))
        show(step(2, accuracy=0.5))
        for number in range(3, 15):
            clock.now += 1.0
            show(step(number))
    text = (
        "table emb.table  1,000 rows  3 counted  1,007 admitted  5 refused  7 forgotten"
        "  hit rate 50.0%  100.0 kB"
    )
    heads = [line.split("  ")[0] for line in lines_of(out)]
    assert heads.count("table emb.table") == 2
    assert lines_of(out)[heads.index("evaluation after step 2") + 1] == text
    assert lines_of(out)[heads.index("step 12") + 1] == text
    resumed = table_text("emb.table", TableCounts(rows=9, since=1200, admitted=2))
    assert resumed == "table emb.table  9 rows  since step 1,200: 2 admitted  0 bytes"


def waits(share: float, *peers: str, samples: int = 100) -> WaitCounts:
    return WaitCounts(samples, round(share * samples), peers)


def running(node: str, step: int, counts: WaitCounts, *waiting: str) -> State:
    return State(node, "running", step, waiting, 1_500_000, waits=counts)


def run_with_waits(clock: Clock | None = None) -> RunView:
    programs = {"worker:0": "w.py", "worker:1": "w.py", "ps:0": "ps.py"}
    run = RunView(
        "digits",
        [*programs],
        clock or Clock(),
        programs=programs,
        loss="loss",
        better=Best("accuracy", "max"),
        folder=lambda: Path("runs/digits-1"),
    )
    run.update(Start(1, 1200, 100))
    for number, accuracy in ((1, 0.5), (2, 0.75), (3, 0.625)):
        run.update(step(number, accuracy))
    run.update(running("worker:0", 3, waits(0.55, "ps:0")))
    run.update(running("worker:1", 3, waits(0.4, "ps:0")))
    run.update(running("ps:0", 3, waits(0.44, "worker:1")))
    return run


def test_the_live_table_shows_the_waits_the_best_evaluation_and_the_folder(
    terminal: Console,
) -> None:
    table = LiveTable(run_with_waits(), terminal)
    lines = screen(table, 80, 24)
    assert lines[0] == (
        "digits  step 3 of 1,200  epoch 1 of 12" + " " * 29 + "runs/digits-1"
    )
    assert lines[2] == "loss 0.3333 █▃▁  1,234 samples/s"
    assert lines[3] == "best evaluation, after step 2: accuracy 0.75"
    assert lines[4].split()[3:] == ["sent", "waits", "mostly", "for"]
    assert lines[5].split()[-3:] == ["██████░░░░", "55%", "ps:0"]
    assert lines[7].split()[-3:] == ["████░░░░░░", "44%", "worker:1"]
    assert lines[8].startswith("evaluation after step")


def test_a_wide_terminal_shows_nodes_and_evaluations_side_by_side(
    terminal: Console,
) -> None:
    lines = screen(LiveTable(run_with_waits(), terminal), 200, 50)
    (head,) = [line for line in lines if line.startswith("node")]
    assert "mostly for    evaluation after step" in head
    assert lines[-1].split()[-3:] == ["3", "1", "0.625"]
    assert lines[-1].startswith("ps:0")


def test_the_end_keeps_the_waits_of_each_class_of_nodes(terminal: Console) -> None:
    table = LiveTable(run_with_waits(), terminal)
    with table:
        pass
    lines = screen(table, 80, 24)
    assert lines[4].split() == ["node", "step", "sent", "waits", "mostly", "for"]
    assert lines[5].split()[-3:] == ["█████░░░░░", "40-55%", "ps:0"]
    assert lines[5].startswith("worker:0-1 ")
    assert lines[6].startswith("ps:0 ")
    out = io.StringIO()
    with PlainLines(run_with_waits(), out):
        pass
    assert lines_of(out)[1:] == [
        "worker:0-1 waited 40-55% of the time, mostly for ps:0",
        "ps:0 waited 44% of the time, mostly for worker:1",
    ]


def test_the_live_table_shows_the_staleness_of_all_servers(terminal: Console) -> None:
    run = run_with_waits()
    run.update(State("ps:0", "running", 3, staleness={"0": 5, "2": 1}))
    stale = {"10": 1, "9": 1}
    run.update(State("worker:0", "running", 3, staleness=stale, geo_staleness={"4": 1}))
    lines = screen(LiveTable(run, terminal), 80, 24)
    shown = "staleness: mean 2.62, maximum 10  GEO staleness: mean 4.00, maximum 4"
    assert lines[3] == shown


def test_a_node_that_has_stalled_shows_the_nodes_that_it_waits_for_now() -> None:
    clock = Clock()
    run = run_with_waits(clock)
    clock.now += 5.0
    run.update(running("worker:0", 3, waits(0.6, "ps:0"), "worker:1"))
    run.update(running("ps:0", 4, waits(0.6, "worker:1"), "worker:0"))
    assert [row.waits_for for row in node_rows(run, 3)] == [
        "worker:1 now",
        "",
        "worker:1",
    ]


def test_no_group_of_nodes_waits_for_itself() -> None:
    run = view(("worker:0", "worker:1", "ps:0"))
    run.update(State("worker:0", "comparing rows", 0, ("ps:0",)))
    run.update(State("worker:1", "comparing rows", 0, ("worker:0",)))
    assert [(row.nodes, row.waits_for) for row in group_rows(run)] == [
        ("worker:1", "worker:0"),
        ("worker:0", "ps:0"),
        ("ps:0", ""),
    ]
    run.update(State("worker:0", "comparing rows", 0, ("worker:1",)))
    assert group_rows(run)[0].nodes == "worker:0-1"
    assert group_rows(run)[0].waits_for == "each other"


def test_a_terminal_without_unicode_gets_ascii(terminal: Console) -> None:
    table = LiveTable(run_with_waits(), terminal)
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    table.console = Console(file=out, force_terminal=True, width=50, height=20)
    table.console.print(table.view())
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    text = out.buffer.getvalue().decode("ascii")
    assert "loss 0.3333 #-_" in text
    assert "55%" in text


def test_a_long_folder_is_shortened_to_its_name_in_the_title(terminal: Console) -> None:
    run = run_with_waits()
    run.folder = lambda: Path("/somewhere/far/away/from/the/working/folder/digits-7")
    table = LiveTable(run, terminal)
    assert screen(table, 80, 24)[0].endswith("  digits-7")
    assert screen(table, 46, 24)[0] == "digits  step 3 of 1,200  epoch 1 of 12"


def test_a_line_off_a_terminal_has_at_most_100_characters() -> None:
    out = io.StringIO()
    nodes = tuple(f"node{i}:0" for i in range(20))
    with PlainLines(view(nodes), out) as show:
        show(Start(1, 1000, 10))
        rates = {f"rule{i}": 0.001 for i in range(9)}
        metrics = {"loss": 0.123456, "accuracy": 0.5, "auc": 0.5}
        show(Step(1, 1, metrics, None, 123456.7, 0.0, learning_rates=rates))
        clock = show.run.clock
        assert isinstance(clock, Clock)
        clock.now += 10.0
        show(State("node3:0", "connecting", 0, nodes[:2]))
    assert all(len(line) <= 100 for line in lines_of(out))
    assert "".join(lines_of(out)).count("starting") == 19


def test_a_long_series_keeps_its_shape() -> None:
    series = Series()
    for number in range(1000):
        series.add(1000 - number)
    line = series.line()
    assert line[0] == "█"
    assert line[-1] == "▁"
    assert 10 <= len(line) < 20
    assert sorted(line, reverse=True) == [*line]
