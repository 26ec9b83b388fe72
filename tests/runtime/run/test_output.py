"""What a node's Python code prints is in its log, and its launcher hears of it."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import placer
from placer.runtime.run.output import LONGEST, reported


@contextmanager
def logged() -> Iterator[tuple[io.StringIO, list[str]]]:
    """The log of a node meanwhile, and the lines that are reported."""
    stream, told = io.StringIO(), list[str]()
    with redirect_stdout(stream), redirect_stderr(stream), reported(told.append):
        yield stream, told


def test_lines_are_reported_once_they_end_and_the_log_has_all():
    with logged() as (log, told):
        print("one\ntwo", end="")
        assert told == ["one"]
        print(" and a half", file=sys.stdout)
        sys.stderr.writelines(["a ", "b\n"])
        print("open", end="")
        assert sys.stdout.getvalue() == log.getvalue()  # what else a stream has
    assert told == ["one", "two and a half", "a b", "open"]
    assert log.getvalue() == "one\ntwo and a half\na b\nopen"


def test_a_bar_of_progress_is_reported_as_it_ends():
    with logged() as (_, told):
        for percent in range(101):
            print(f"\r{percent} %", end="")
        print("\rdone\r")
    assert told == ["done"]


def test_a_line_without_end_is_neither_kept_nor_reported_whole():
    with logged() as (log, told):
        for _ in range(100):
            sys.stdout.write("x" * LONGEST)
        print()
    assert told == ["x" * LONGEST + " …"]
    assert len(log.getvalue()) == 100 * LONGEST + 1


def test_a_forked_process_writes_to_the_log_alone(monkeypatch):
    with logged() as (log, told), monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        print("from a child")
    assert told == []
    assert log.getvalue() == "from a child\n"


def test_what_jax_logs_is_in_the_log_alone():
    with logged() as (log, told):
        logging.getLogger("jax.some").warning("no GPU is found")
        handler = logging.StreamHandler()
        handler.handle(logging.makeLogRecord({"msg": "a row is short"}))
    assert told == ["a row is short"]
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


def test_a_reader_prints_to_its_launcher_and_finds_files_beside_the_spec(tmp_path):
    """In a process of its own a node writes its events to a pipe; so does this one."""
    (tmp_path / "rows.py").write_text(ROWS)
    (tmp_path / "rows.txt").write_text("1 2 3 4")
    (tmp_path / "model.yaml").write_text(SPEC)
    placer.compile(tmp_path / "model.yaml", tmp_path / "build")
    ours, theirs = os.pipe()
    try:
        result = placer.run(tmp_path / "build", "worker:0", report_fd=theirs)
    finally:
        os.close(theirs)
    assert result is not None
    assert result.steps == 1
    with open(ours) as pipe:
        events = [json.loads(line) for line in pipe]
    lines = [event["text"] for event in events if event["event"] == "output"]
    assert lines == [f"reads {tmp_path}"]
