"""The file of a timeline: slices nest and arrows connect them, on any clocks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.trace_file import read_trace

from placer.errors import RunError
from placer.runtime.control.timeline_window import Window
from placer.runtime.timeline import chrome
from placer.runtime.timeline.chrome import write_timeline
from placer.runtime.timeline.clocks import Clock, Measurement
from placer.runtime.timeline.part import Part
from placer.runtime.timeline.recorder import COLUMNS, RECEIVED, SENT
from placer.runtime.timeline.timeline import Timeline

NAMES = (("step", "step 1"), ("compute", "forward"), ("", "a:0"), ("", "b:0"))
NODES = ("a:0", "b:0")


@st.composite
def nested(draw, depth=3, start=0, length=10**7):
    """Draw slices that nest within a time, the inner ones first, as they are recorded."""
    rows, low = [], start
    for _ in range(draw(st.integers(0, 3)) if depth else 0):
        begin = low + draw(st.integers(0, 50))
        end = begin + draw(st.integers(0, max(0, (start + length - begin) // 2)))
        if end > start + length:
            break
        rows += draw(nested(depth - 1, begin, end - begin))
        rows.append((begin, end))
        low = end
    return rows


@st.composite
def clocks(draw):
    offset = draw(st.integers(-(10**15), 10**15))
    drift = draw(st.integers(-1000, 1000))
    first = Measurement(0, offset, 10)
    return Clock((first, Measurement(10**7, offset + drift, 10)))


def part_with(node, spans, messages=()):
    rows = [(0, 1, low, high, *[0] * 7) for low, high in spans]
    return Part(
        node, NAMES, ("program",), np.array([*rows, *messages]).reshape(-1, COLUMNS)
    )


@given(spans=st.tuples(nested(), nested()), clock=clocks())
def test_slices_nest_on_every_clock(tmp_path_factory, spans, clock):
    parts = [part_with(node, each) for node, each in zip(NODES, spans, strict=True)]
    timeline = Timeline(NODES, parts, Window(1, 2), {"b:0": clock})
    path = tmp_path_factory.getbasetemp() / "nested.json"
    write_timeline(path, timeline)
    trace = read_trace(path)
    assert sum(map(len, trace.slices.values())) == len(spans[0]) + len(spans[1])
    assert trace.nodes == list(NODES)


def test_messages_of_a_key_are_connected_in_their_order(tmp_path):
    key = (4, 1, 0, 8, 2)
    sent = [(0, 1, t, t + 5, SENT, 3, *key) for t in (10, 20, 30)]
    received = [(0, 1, t, t + 5, RECEIVED, 2, *key) for t in (21, 31)]
    parts = [part_with("a:0", [], sent), part_with("b:0", [], received)]
    write_timeline(tmp_path / "t.json", Timeline(NODES, parts, Window(1, 2)))
    trace = read_trace(tmp_path / "t.json")
    times = [(float(s["ts"]), float(f["ts"])) for s, f in trace.arrows.values()]
    assert times == [(0.0, 0.011), (0.01, 0.021)]


def test_a_message_in_pieces_has_the_bytes_that_were_sent(tmp_path):
    key = (4, 1, 0)
    parts = [
        part_with("a:0", [], [(0, 1, 10, 15, SENT, 3, *key, 8, 2)]),
        part_with("b:0", [], [(0, 1, 21, 26, RECEIVED, 2, *key, 0, 2)]),
    ]
    write_timeline(tmp_path / "t.json", Timeline(NODES, parts, Window(1, 2)))
    trace = read_trace(tmp_path / "t.json")
    (received,) = trace.slices["b:0", "program"]
    assert received["args"]["bytes"] == 8


def test_own_times_of_slices_are_shares_of_the_time_of_steps():
    rows = [
        (0, 1, 10, 40, *[0] * 7),
        (0, 0, 0, 100, *[0] * 7),
        (0, 1, 150, 160, *[0] * 7),  # outside of steps
    ]
    part = Part("a:0", NAMES, ("program",), np.array(rows))
    shares = Timeline(NODES, [part], Window(1, 1)).shares()
    assert shares == {"a:0": {"compute": 0.3, "step": 0.7}}


def test_what_is_missing_is_said(tmp_path):
    part = Part("a:0", NAMES, ("program",), np.empty((0, COLUMNS), np.int64), 5, 2)
    timeline = Timeline(NODES, [part], Window(1, 9), failure="ps:0 was lost")
    write_timeline(tmp_path / "t.json", timeline)
    about = json.loads((tmp_path / "t.json").read_text())["otherData"]
    assert about["nodes left out"] == ["b:0"]
    assert about["failure"] == "ps:0 was lost"
    assert about["slices left out"] == {"a:0": "5 from step 2 on, for lack of room"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    path.write_text("as before")
    timeline = Timeline(NODES, [part_with("a:0", [(1, 2)])], Window(1, 9))

    def full(path, mode):
        return open("/dev/full", "wb")

    monkeypatch.setattr(chrome, "atomic_file", full)
    with pytest.raises(RunError, match=r"t\.json: No space left on device"):
        write_timeline(path, timeline)
    assert path.read_text() == "as before"
