"""Reading of traces, and errors for files that are not traces."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_traces import DrawnTrace

from placer.compiler.driver import compile_in_memory
from placer.errors import PlacerError
from placer.report.step import trace_file
from placer.report.step.step_time import step_time
from placer.report.step.trace import OUTSIDE, Label, Message
from placer.report.step.trace_file import read_trace
from placer.system.resources import find_file


@pytest.fixture(scope="module")
def plan():
    return compile_in_memory(find_file("specs/digits.yaml")).plan


def small_trace():
    drawn = DrawnTrace()
    drawn.add("worker:0", "step", "step 7", 0, 10)
    drawn.add("ps:0", "update", "update dense", 0, 3)
    drawn.send("ps:0", "worker:0", "w", (1, 2), (4, 5))
    return drawn


def test_a_trace_has_slices_messages_and_arrows(tmp_path, plan):
    drawn = small_trace()
    drawn.about["clock uncertainty in microseconds"] = {"ps:0": 12.5}
    drawn.about["slices left out"] = {"ps:0": "3 from step 9 on, for lack of room"}
    trace = drawn.read(tmp_path, plan)
    assert trace.nodes == ("worker:0", "ps:0")
    worker, server = trace.threads
    assert (server.node, server.name) == ("ps:0", "program")
    assert server.starts.tolist() == [0, 1_000_000]
    assert server.ends.tolist() == [3_000_000, 2_000_000]
    assert server.parents.tolist() == [OUTSIDE, 0]
    assert trace.label(server, 0) == Label("update", "update dense")
    assert server.messages == {
        1: Message("ps:0", "worker:0", "w", 1000, edge=1, step=1)
    }
    assert worker.messages == {
        1: Message("ps:0", "worker:0", "w", 1000, edge=1, step=1)
    }
    assert trace.arrows == [(1, 1_000_000, 0, 4_000_000, True)]
    assert trace.uncertainty == {"ps:0": 12_500}
    assert trace.full_in == {"ps:0": 9}
    assert trace.build == plan.digest


def test_slices_that_cross_are_shortened(tmp_path, plan):
    drawn = DrawnTrace()
    drawn.add("worker:0", "step", "step 7", 0, 10)
    drawn.add("worker:0", "read", "read", 8, 12)
    (thread,) = drawn.read(tmp_path, plan).threads
    assert thread.ends.tolist() == [10_000_000, 10_000_000]


def with_event(**event):
    content = small_trace().content("BUILD")
    content["traceEvents"].append({"ph": "X", "name": "x", "cat": "read", **event})
    return content


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is damaged: Input data was truncated"),
        (b"\xff\xfe{", "is damaged: "),
        (b"[" * 100_000, "is damaged: "),
        ([], "is damaged: Expected `object`"),
        ({"traceEvents": 3}, "is damaged: Expected `array`"),
        ({"traceEvents": []}, "does not name its build"),
        (with_event(pid=1, tid=77, ts=0.0), "the thread 77 has no name"),
        (with_event(pid=1, tid=1000, ts=1e300), "the time of 'x' is out of range"),
        (with_event(pid=1, tid=1000, dur=-1.0), "the time of 'x' is out of range"),
        (with_event(pid=1, tid=1000, ts="now"), "Expected `float`, got `str`"),
        (with_event(pid=1, tid=1000, args={"values": 3}), "Expected `array`"),
    ],
)
def test_a_damaged_file_is_an_error_with_its_reason(tmp_path, plan, content, problem):
    path = tmp_path / "trace.json"
    if not isinstance(content, bytes):
        content = json.dumps(content).replace("BUILD", plan.digest).encode()
    path.write_bytes(content)
    with pytest.raises(PlacerError, match=problem.replace("`", ".")) as caught:
        read_trace(path, plan)
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_a_trace_of_another_build_is_an_error(tmp_path, plan):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(small_trace().content("0" * 64)))
    with pytest.raises(PlacerError, match="a trace of another build") as caught:
        read_trace(path, plan)
    assert "a run of digits with --trace" in caught.value.hint


def test_a_missing_or_too_large_file_is_an_error(tmp_path, plan, monkeypatch):
    with pytest.raises(PlacerError, match=r"cannot read the trace .*No such file"):
        read_trace(tmp_path / "nothing.json", plan)
    with pytest.raises(PlacerError, match=r"cannot read the trace .*directory"):
        read_trace(tmp_path, plan)
    monkeypatch.setattr(trace_file, "MAX_BYTES", 100)
    with pytest.raises(PlacerError, match="has more than 100 bytes") as caught:
        small_trace().read(tmp_path, plan)
    assert "--trace-steps" in caught.value.hint


@settings(max_examples=50)
@given(data=st.data())
def test_a_changed_file_is_read_or_is_an_error(tmp_path_factory, plan, data):
    path = tmp_path_factory.getbasetemp() / "changed.json"
    content = bytearray(json.dumps(small_trace().content(plan.digest)).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[at] = data.draw(st.sampled_from(b'09-e.",:{}[]x'))
        else:
            del content[at:]
            content += b"]}"
    path.write_bytes(content)
    try:
        trace = read_trace(path, plan)
    except PlacerError:
        return
    step_time(trace, plan, None)
