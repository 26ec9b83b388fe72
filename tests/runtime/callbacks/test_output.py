"""Text that a node's Python code prints is logged, and reported to its launcher."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest
from support.free_addresses import free_addresses

import placer
from placer.runtime.callbacks.printed_output import MAX_LINE, report_output

pytestmark = pytest.mark.usefixtures("threads_watched")


@contextmanager
def capture() -> Iterator[tuple[io.StringIO, list[str]]]:
    """Yield the log of a node within the context, and the lines that are reported."""
    stream, lines = io.StringIO(), list[str]()
    with redirect_stdout(stream), redirect_stderr(stream), report_output(lines.append):
        yield stream, lines


def test_lines_are_reported_when_they_end_and_all_text_is_logged():
    with capture() as (log, lines):
        print("one\ntwo", end="")
        assert lines == ["one"]
        print(" and a half", file=sys.stdout)
        sys.stderr.writelines(["a ", "b\n"])
        print("open", end="")
        assert sys.stdout.getvalue() == log.getvalue()  # other methods are passed on
    assert lines == ["one", "two and a half", "a b", "open"]
    assert log.getvalue() == "one\ntwo and a half\na b\nopen"


def test_only_the_last_state_of_a_progress_bar_is_reported():
    with capture() as (_, lines):
        for percent in range(101):
            print(f"\r{percent} %", end="")
        print("\rdone\r")
    assert lines == ["done"]


def test_a_very_long_line_is_truncated():
    with capture() as (log, lines):
        for _ in range(100):
            sys.stdout.write("x" * MAX_LINE)
        print()
    assert lines == ["x" * MAX_LINE + " …"]
    assert len(log.getvalue()) == 100 * MAX_LINE + 1


def test_a_forked_process_only_writes_to_the_log(monkeypatch):
    with capture() as (log, lines), monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        print("from a child")
    assert lines == []
    assert log.getvalue() == "from a child\n"


def test_what_jax_logs_is_only_in_the_log():
    with capture() as (log, lines):
        logging.getLogger("jax.some").warning("no GPU is found")
        handler = logging.StreamHandler()
        handler.handle(logging.makeLogRecord({"msg": "a row is short"}))
    assert lines == ["a row is short"]
    assert log.getvalue() == "no GPU is found\na row is short\n"


SPEC = """\
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 1]"}
data: {train: {source: "python:rows:rows", batch: 4}}
graph:
  - {name: h, op: fc, in: x, size: 1}
  - {name: loss, op: reduce_mean, in: h}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1, place: /node:worker}}
"""
ROWS = """\
import placer

def rows():
    print("reads", placer.data_folder())
    for line in (placer.data_folder() / "rows.txt").read_text().split():
        yield {"x": [float(line)]}
"""


def test_lines_that_a_reader_prints_are_reported(tmp_path):
    """A node writes its events to a pipe, as in a process of its own."""
    (tmp_path / "rows.py").write_text(ROWS)
    (tmp_path / "rows.txt").write_text("1 2 3 4")
    (tmp_path / "model.yaml").write_text(SPEC)
    placer.compile(tmp_path / "model.yaml", tmp_path / "build")
    ours, theirs = os.pipe()
    try:
        result = placer.run(
            tmp_path / "build",
            "worker:0",
            endpoints=free_addresses(["worker:0"]),
            report_fd=theirs,
        )
    finally:
        os.close(theirs)
    assert result is not None
    assert result.steps == 1
    with open(ours) as pipe:
        events = [json.loads(line) for line in pipe]
    lines = [event["text"] for event in events if event["event"] == "output"]
    assert lines == [f"reads {tmp_path}"]
