"""Recording a metric does not wait, and its errors are not lost."""

import queue
import threading

import numpy as np
import pytest

from placer import RunError, compile
from placer.channel.in_process import memory_channels
from placer.channel.interface import Cause, Key
from placer.plan.plan import read_plan
from placer.runtime.control.barrier import EVALUATION, STEP
from placer.runtime.metrics import stream
from placer.runtime.metrics.combiner import Combiner, Phase
from placer.runtime.metrics.stream import MAX_PENDING, MetricsStream
from placer.system.resources import find_file

RIGHT = np.array([3, 4, 0], np.int32)


def ignore_loss(step, loss):
    pass


class Late:
    """A value whose computation takes until `ready` is set."""

    def __init__(self):
        self.requested = threading.Event()
        self.ready = threading.Event()

    def __float__(self):
        self.requested.set()
        assert self.ready.wait(60)
        return 0.5


@pytest.fixture
def plan(tmp_path):
    """The plan of two_workers for one process."""
    spec = find_file("specs/two_workers.yaml")
    compile(spec, tmp_path / "build", single_process=True)
    return read_plan(tmp_path / "build")


@pytest.fixture
def two(tmp_path):
    """The plan of two_workers, whose second worker records."""
    compile(find_file("specs/two_workers.yaml"), tmp_path / "build")
    return read_plan(tmp_path / "build")


def channel_of(plan, node="worker:0"):
    channels = memory_channels([n.name for n in plan.nodes], deadline=60)
    return channels[node]


def test_a_step_does_not_wait_for_its_metrics(plan):
    lines, late = [], Late()
    with MetricsStream(plan, channel_of(plan), lines.append, ignore_loss) as metrics:
        for step in (1, 2, 3):
            metrics.record({"loss": late, "accuracy": RIGHT}, 1)
            metrics.end(Phase(STEP, step, 1, 4))
        assert late.requested.wait(60)
        assert lines == []
        late.ready.set()
    assert [line.step for line in lines] == [1, 2, 3]
    assert lines[0].metrics == {"loss": 0.5, "accuracy": 0.75}


def test_a_node_that_sends_metrics_does_not_wait_for_them(two):
    channels = memory_channels([n.name for n in two.nodes], deadline=60)
    (recorder,) = (n for n in two.nodes if n.step.metrics)
    assert recorder.name != two.control
    lines, late = [], Late()
    with MetricsStream(
        two, channels[two.control], lines.append, ignore_loss
    ) as control:
        control.end(Phase(STEP, 1, 1, 4))
        with MetricsStream(
            two, channels[recorder.name], lines.append, ignore_loss
        ) as metrics:
            metrics.record({"loss": late, "accuracy": RIGHT}, 1)
            metrics.end(Phase(STEP, 1, 1, 4))
            assert late.requested.wait(60)
            late.ready.set()
    assert [line.metrics for line in lines] == [{"loss": 0.5, "accuracy": 0.75}]


def test_an_evaluation_is_reported_with_the_step_before_it(plan):
    lines = []
    with MetricsStream(plan, channel_of(plan), lines.append, ignore_loss) as metrics:
        metrics.record({"loss": 1.0, "accuracy": RIGHT}, 1)
        metrics.end(Phase(STEP, 1, 1, 4))
        metrics.record({"loss": 2.0, "accuracy": RIGHT}, 4)
        metrics.record({"loss": 5.0, "accuracy": np.array([0, 2, 0], np.int32)}, 2)
        metrics.end(Phase(EVALUATION, 1, 0, 6))
        metrics.record({"loss": 3.0, "accuracy": RIGHT}, 1)
        metrics.end(Phase(STEP, 2, 1, 4))
    first, second = lines
    assert first.eval == {"loss": 3.0, "accuracy": 0.5}
    assert first.metrics == {"loss": 1.0, "accuracy": 0.75}
    assert (second.metrics["loss"], second.eval) == (3.0, None)


def test_a_step_is_reported_as_soon_as_all_of_it_has_ended(plan):
    lines = queue.Queue()
    with MetricsStream(plan, channel_of(plan), lines.put, ignore_loss) as metrics:
        metrics.record({"loss": 1.0, "accuracy": RIGHT}, 1)
        metrics.end(Phase(STEP, 1, 1, 4, evaluated=False))
        assert lines.get(timeout=60).step == 1
        metrics.record({"loss": 1.0, "accuracy": RIGHT}, 1)
        metrics.end(Phase(STEP, 2, 1, 4))
        metrics.record({"loss": 2.0, "accuracy": RIGHT}, 4)
        metrics.end(Phase(EVALUATION, 2, 0, 4))
        evaluated = lines.get(timeout=60)
        assert (evaluated.step, evaluated.eval["loss"]) == (2, 2.0)
        assert evaluated.evaluation_seconds > 0
    assert lines.empty()


def test_steps_after_the_last_one_of_a_stopped_run_have_no_metrics(two):
    channels = memory_channels([n.name for n in two.nodes], deadline=30)
    lines, recorded = [], [np.array([3, 4, 0]), np.array(0.5)]
    combiner = Combiner(two, channels[two.control], lines.append, ignore_loss)
    combiner.end_after(2)
    combiner.start()
    for step in (1, 2, 3):  # the control node is ahead of the other worker
        if step < 3:
            channels["worker:1"].send(two.control, Key(STEP, step), recorded)
        combiner.add(Phase(STEP, step, 1, 4), {})
    combiner.flush()
    combiner.end()
    assert [line.step for line in lines] == [1, 2]


def test_counts_beyond_32_bits_are_exact(plan):
    lines = []
    many = np.array([2**31 - 1, 2**31 - 1, 0], np.int32)
    with MetricsStream(plan, channel_of(plan), lines.append, ignore_loss) as metrics:
        metrics.record({"loss": 0.0, "accuracy": many}, 1)
        metrics.end(Phase(STEP, 1, 1, 4))
        for _ in range(3):
            metrics.record({"loss": 0.0, "accuracy": many}, 4)
        metrics.record({"loss": 0.0, "accuracy": np.array([0, 3, 0], np.int32)}, 4)
        metrics.end(Phase(EVALUATION, 1, 0, 16))
    whole = 3 * (2**31 - 1)
    assert lines[0].eval["accuracy"] == whole / (whole + 3)


def test_an_error_of_the_stream_is_raised_and_the_queue_is_drained(plan):
    def full(line):
        raise RunError("the disk is full")

    def record_many():
        with MetricsStream(plan, channel_of(plan), full, ignore_loss) as metrics:
            for step in range(1, 3 * MAX_PENDING):
                metrics.record({"loss": 1.0, "accuracy": RIGHT}, 1)
                metrics.end(Phase(STEP, step, 1, 4))

    with pytest.raises(RunError, match="the disk is full"):
        record_many()


def test_a_failed_step_does_not_wait_for_metrics(plan, monkeypatch):
    monkeypatch.setattr(stream, "END_LIMIT", 0.01)
    late = Late()

    def fail():
        with MetricsStream(
            plan, channel_of(plan), lambda line: None, ignore_loss
        ) as metrics:
            metrics.record({"loss": late, "accuracy": RIGHT}, 1)
            assert late.requested.wait(60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not late.ready.is_set()
    late.ready.set()


def test_an_aborted_run_ends_the_wait_for_other_nodes(two):
    channels = memory_channels([n.name for n in two.nodes], deadline=60)
    channel = channels[two.control]
    metrics = MetricsStream(two, channel, lambda line: None, ignore_loss)

    def wait_for_the_other():
        with metrics:
            metrics.end(Phase(STEP, 1, 1, 4))
            channels["worker:1"].abort(Cause("worker:1", "step 1", "it is out"))

    with pytest.raises(RunError, match="it is out"):
        wait_for_the_other()
