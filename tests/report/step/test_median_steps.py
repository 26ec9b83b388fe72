"""The steps of a trace, and the one in the middle."""

import pytest
from support.drawn_traces import DrawnTrace

from placer.compiler.driver import compile_in_memory
from placer.report.step.facts import SentBytes
from placer.report.step.step_time import step_time
from placer.report.step.steps import median_step, steps_of
from placer.system.resources import find_file


def plan_of(name):
    return compile_in_memory(find_file(f"specs/{name}.yaml")).plan


@pytest.fixture(scope="module")
def synchronous():
    return plan_of("digits")


def with_steps(**steps):
    """A trace with the start and the end of each step of each node."""
    drawn = DrawnTrace([node.replace("_", ":") for node in steps])
    for node, spans in steps.items():
        for number, (start, end) in enumerate(spans, 1):
            name = node.replace("_", ":")
            drawn.add(name, "step", f"step {number}", start, end)
    return drawn


def spans(steps):
    return [(s.number, s.begin // 10**6, s.end // 10**6) for s in steps]


def test_a_common_step_ends_with_its_last_worker(tmp_path, synchronous):
    drawn = with_steps(
        worker_0=[(0, 10), (12, 20), (21, 40)],
        worker_1=[(1, 11), (11, 25), (26, 30)],
        ps_0=[(0, 15), (15, 32), (32, 60)],
    )
    steps = steps_of(drawn.read(tmp_path, synchronous), synchronous)
    assert spans(steps) == [(1, 0, 11), (2, 11, 25), (3, 25, 40)]
    assert [step.thread for step in steps] == [1, 1, 0]
    assert median_step(steps).number == 2


def test_an_evaluation_between_steps_does_not_count(tmp_path, synchronous):
    drawn = with_steps(worker_0=[(0, 10), (50, 60)], worker_1=[(0, 9), (49, 55)])
    drawn.add("worker:0", "step", "evaluation after step 1", 10, 49)
    steps = steps_of(drawn.read(tmp_path, synchronous), synchronous)
    assert spans(steps) == [(1, 0, 10), (2, 49, 60)]


def test_of_asynchronous_workers_the_slowest_counts(tmp_path):
    plan = plan_of("digits_async")
    drawn = with_steps(
        worker_0=[(0, 10), (10, 20)], worker_1=[(0, 30), (30, 75)], ps_0=[(0, 90)]
    )
    trace = drawn.read(tmp_path, plan)
    steps = steps_of(trace, plan)
    assert spans(steps) == [(1, 0, 30), (2, 30, 75)]
    assert step_time(trace, plan, None).sentence.startswith(
        "A step of worker:1, the slowest worker, takes 30.0 ms (step 1, the median of 2)."
    )


def test_steps_that_are_not_whole_are_left_out(tmp_path, synchronous):
    drawn = with_steps(worker_0=[(0, 1), (1, 2), (2, 3)], worker_1=[(0, 1), (1, 2)])
    drawn.about["slices left out"] = {"ps:0": "3 from step 2 on, for lack of room"}
    steps = steps_of(drawn.read(tmp_path, synchronous), synchronous)
    assert spans(steps) == [(1, 0, 1)]


def test_a_trace_without_steps_has_no_median(tmp_path, synchronous):
    drawn = DrawnTrace()
    drawn.add("worker:0", "read", "read", 0, 1)
    assert step_time(drawn.read(tmp_path, synchronous), synchronous, None) is None


def test_the_facts_of_a_step_are_relative_to_its_start(tmp_path, synchronous):
    drawn = with_steps(worker_0=[(100, 110)], worker_1=[(100, 110)], ps_0=[(103, 115)])
    drawn.add("worker:0", "read", "read", 101, 104)
    drawn.add("worker:0", "send", "send", 105, 109)
    drawn.add("worker:0", "send", "w.grad to ps:0", 106, 108, target="ps:0")
    drawn.add("ps:0", "update", "update dense", 104, 114)
    found = step_time(drawn.read(tmp_path, synchronous), synchronous, None)
    worker, _, server = found.rows
    assert [(s.start, s.end, s.name, s.depth) for s in worker.slices] == [
        (0, 0.01, "step 1", 0),
        (0.001, 0.004, "read", 1),
        (0.005, 0.009, "send", 1),
        (0.006, 0.008, "w.grad to ps:0", 2),
    ]
    assert (server.node, server.slices[-1].end) == ("ps:0", 0.01)
    assert found.measured["ps:0"] == {"update dense": pytest.approx(0.01)}
    assert found.measured["worker:0"]["send"] == pytest.approx(0.002)
    assert found.measured["worker:0"]["w.grad to ps:0"] == pytest.approx(0.002)
    assert found.shares["ps:0"] == pytest.approx({"step": 2 / 12, "update": 10 / 12})


def with_messages(**steps):
    drawn = with_steps(worker_0=[(0, 10)], worker_1=[(0, 10)], ps_0=[(0, 10)], **steps)
    drawn.send("ps:0", "worker:0", "w", (1, 2), (3, 4), nbytes=30)
    drawn.send("ps:0", "worker:0", "b", (4, 5), (6, 7), nbytes=12)
    next_step = {"target": "ps:0", "edge": 1, "step": 2, "bytes": 5}
    drawn.add("worker:0", "send", "keys to ps:0", 8, 9, **next_step)
    return drawn


def test_the_messages_of_the_median_step_are_counted(tmp_path, synchronous):
    drawn = with_messages(ps_1=[(0, 10)])
    found = step_time(drawn.read(tmp_path, synchronous), synchronous, None)
    assert found.sent == (SentBytes(1, "ps:0", "worker:0", 42, 0.003),)


def test_the_messages_of_a_trace_without_some_nodes_are_not_counted(
    tmp_path, synchronous
):
    drawn = with_messages()
    found = step_time(drawn.read(tmp_path, synchronous), synchronous, None)
    assert found.sent == ()
