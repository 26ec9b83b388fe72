"""A run of real processes writes one trace of all nodes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from support.real_runs import INDEXED_READER, compile_small, launch
from support.trace_file import read_trace


def of_step(messages: Counter[tuple[Any, ...]], step: int) -> Counter[tuple[Any, ...]]:
    """The messages of a step."""
    return Counter({key: n for key, n in messages.items() if key[3] == step})


def test_processes_send_their_slices_to_the_control_node(tmp_path: Path) -> None:
    build = compile_small(tmp_path, workers=2)
    path = tmp_path / "trace.json"
    done = launch(build, f"--trace={path}", "--trace-steps=2:5")
    assert done.status == 0, done.err
    trace = read_trace(path)
    assert trace.nodes == ["worker:0", "worker:1", "ps:0"]
    for node in trace.nodes:
        assert trace.names(node)["step 2"] == trace.names(node)["step 5"] == 1
    # A message may be sent in the step before the one that it is received in.
    sent, received = trace.messages("target"), trace.messages("source")
    for step in (3, 4, 5):
        assert of_step(sent, step) == of_step(received, step)
        assert of_step(sent, step).total() > 0
    assert len(trace.arrows) == (sent & received).total()
    # They share a clock.
    assert all(end["ts"] > start["ts"] for start, end in trace.arrows.values())
    assert trace.about["clock uncertainty in microseconds"] == {}
    assert str(tmp_path) not in path.read_text()
    assert list(json.loads(done.out)["shares"]) == trace.nodes
    assert "  A step takes " in done.err
    assert "Its longest chain: " in " ".join(done.err.split())


def test_a_failed_run_of_processes_leaves_a_trace(tmp_path: Path) -> None:
    build = compile_small(tmp_path, rows=INDEXED_READER)
    path = tmp_path / "trace.json"
    done = launch(build, f"--trace={path}")
    assert done.status == 1
    trace = read_trace(path)
    assert "no such patient" in trace.about["failure"]
    assert trace.names("worker:0")["read"]
    assert "the trace until the failure is in" in done.err
