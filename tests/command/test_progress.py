"""The progress of a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest
from rich.console import Console

from placer.report import progress
from placer.report.progress import LiveTable, PlainLines, RunView
from placer.runtime.run.events import Output, State, Step

NODES = ("worker:0", "ps:0")


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def step(number: int, accuracy: float | None = None) -> Step:
    evaluation = None if accuracy is None else {"accuracy": accuracy}
    return Step(number, 1, {"loss": 1 / number}, evaluation, 1234.5)


def test_plain_lines_show_one_step_per_second_and_the_last() -> None:
    out, clock = io.StringIO(), Clock()
    with PlainLines(RunView(NODES, steps=9), out, clock) as show:
        for number in range(1, 10):
            show(step(number))
            clock.now += 0.3
    assert [line.split("  ")[0] for line in out.getvalue().splitlines()] == [
        "step 1 of 9",
        "step 5 of 9",
        "step 9 of 9",
    ]


def test_plain_lines_show_every_evaluation_with_its_step() -> None:
    out = io.StringIO()
    with PlainLines(RunView(NODES), out, Clock()) as show:
        show(step(1))
        show(step(2, accuracy=0.5))
        show(step(3, accuracy=0.75))
    assert out.getvalue().splitlines() == [
        "step 1  epoch 1  loss 1  1,234 samples/s",
        "step 2  epoch 1  loss 0.5  1,234 samples/s",
        "evaluation after step 2  accuracy 0.5",
        "step 3  epoch 1  loss 0.3333  1,234 samples/s",
        "evaluation after step 3  accuracy 0.75",
    ]


def test_plain_lines_show_the_nodes_waited_for_when_there_is_no_step() -> None:
    out, clock = io.StringIO(), Clock()
    with PlainLines(RunView(NODES), out, clock) as show:
        for _ in range(12):
            show(State("worker:0", "joining", 0, ("ps:0",)))
            clock.now += 0.5
    assert out.getvalue() == "worker:0 joining (waits for ps:0)  ps:0 starting\n"


def test_plain_lines_show_the_number_of_rows_read() -> None:
    out, clock = io.StringIO(), Clock()
    with PlainLines(RunView(NODES[:1]), out, clock) as show:
        for rows in (0, 700_000, 1_400_000):
            show(State("worker:0", "reading rows", rows=rows))
            clock.now += 5.0
    assert out.getvalue().splitlines() == [
        "worker:0 reading rows: 700,000",
        "worker:0 reading rows: 1,400,000",
    ]


@pytest.fixture
def terminal() -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, color_system="standard", width=90
    )


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_live_table_shows_each_node_and_the_run(terminal: Console) -> None:
    with LiveTable("digits", RunView(NODES, steps=1200), terminal) as show:
        show(step(7, accuracy=0.5))
        show(State("worker:0", "running", 7, ("ps:0",), 1_500_000))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text_of(terminal))
    last = [line.split() for line in text.split("digits")[-1].splitlines()]
    assert " ".join(last[0]) == "step 7 of 1,200 epoch 1 loss 0.1429 1,234 samples/s"
    assert last[1] == ["node", "state", "step", "sent", "waits", "for"]
    assert last[2] == ["worker:0", "running", "7", "1.5", "MB", "ps:0"]
    assert last[3] == ["ps:0", "starting"]
    assert last[4] == ["evaluation", "after", "step", "7", "accuracy", "0.5"]


def test_the_live_table_shows_the_cursor_again_after_an_error(
    terminal: Console,
) -> None:
    with pytest.raises(KeyboardInterrupt), LiveTable("d", RunView(NODES), terminal):
        raise KeyboardInterrupt
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert text_of(terminal).rfind(show) > text_of(terminal).rfind(hide) >= 0


def test_the_live_table_is_not_drawn_for_every_event(
    terminal: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", Clock())
    with LiveTable("digits", RunView(NODES), terminal) as show:
        for number in range(1, 1000):
            show(step(number))
    assert "step 999 " in text_of(terminal)
    assert text_of(terminal).count("digits") < 5


def test_output_of_a_node_is_above_the_live_table(
    terminal: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Stream(terminal=True))
    with LiveTable("digits", RunView(NODES), terminal) as show:
        show(Output("ps:0", "[bold]x" * 30))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text_of(terminal))
    printed = text.index("ps:0| " + "[bold]x" * 30)
    assert printed < text.rindex("starting")


@pytest.mark.parametrize("live", [True, False])
def test_output_of_a_node_goes_to_standard_error(
    terminal: Console, live: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    view = RunView(NODES)
    with (
        LiveTable("d", view, terminal)
        if live
        else PlainLines(view, io.StringIO()) as show
    ):
        show(Output("ps:0", "hello"))
    assert capsys.readouterr().err == "ps:0| hello\n"
    assert "hello" not in text_of(terminal)


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
    view = progress.show_progress("digits", NODES, None, Stream(terminal))
    assert isinstance(view, shown)
