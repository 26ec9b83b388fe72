"""The order in which nodes run their tasks for the microbatches of a step."""

from itertools import pairwise
from pathlib import Path

import pytest

from placer.compiler.driver import compile, lower_model
from placer.compiler.frontend import load_text
from placer.compiler.memory.node_memory import MemoryEstimate
from placer.compiler.schedule.schedule import make_schedule
from placer.compiler.schedule.units import LoweredGraph
from placer.errors import GraphError
from placer.system.resources import find_file


def chain(stages, microbatches, wide=1):
    """The graph of a chain of equal layers, each on `wide` workers of its own."""
    lines = "".join(
        f"  - {{name: h{i}, op: fc, in: {f'h{i - 1}' if i else 'x'}, size: 64,"
        f" place: '/node:worker:{i * wide}-{(i + 1) * wide - 1}'}}\n"
        for i in range(stages)
    )
    text = f"""\
nodes: {{worker: {{count: {stages * wide}}}}}
inputs: {{x: "float32[batch, 64]"}}
data: {{train: {{source: "npz:rows.npz", batch: {8 * microbatches}}}}}
graph:
{lines}  - {{name: s, op: mul, in: [h{stages - 1}, h{stages - 1}]}}
  - {{name: loss, op: reduce_sum, in: s}}
train:
  minimize: loss
  microbatches: {microbatches}
  optimizer: {{op: sgd, learning_rate: 0.1}}
"""
    return lower_model(load_text(text, "chain.yaml", Path()))[0]


def task_names(stages, microbatches, policy, wide=1):
    schedule = make_schedule(chain(stages, microbatches, wide), policy)
    return {node: schedule.task_names(node) for node in schedule.tasks}


def test_gpipe_runs_all_forward_tasks_before_the_backward_tasks():
    orders = task_names(2, 3, "gpipe")
    forward = tuple(f"forward.{m}" for m in range(3))
    assert orders == {
        "worker:0": (*forward, *(f"backward.{m}" for m in range(3))),
        "worker:1": tuple(f"forward_backward.{m}" for m in range(3)),
    }


def in_flight(order, first="forward", last="backward"):
    """The largest number of microbatches between a stage's first and last task."""
    count = most = 0
    for task in order:
        count += task.startswith(f"{first}.") - task.startswith(f"{last}.")
        most = max(most, count)
    return most


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_1f1b_has_one_microbatch_in_flight_for_each_remaining_stage(stages):
    orders = task_names(stages, 8, "1f1b")
    for stage in range(stages - 1):
        assert in_flight(orders[f"worker:{stage}"]) == stages - stage
    gpipe = task_names(stages, 8, "gpipe")
    assert in_flight(gpipe["worker:0"]) == 8


@pytest.mark.parametrize("policy", ["1f1b", "gpipe"])
def test_each_task_runs_once_for_each_microbatch_in_order(policy):
    for order in task_names(3, 5, policy).values():
        tasks = {run.partition(".")[0] for run in order}
        for task in tasks:
            runs = [run for run in order if run.partition(".")[0] == task]
            assert runs == [f"{task}.{m}" for m in range(5)]


def test_workers_of_one_stage_have_the_same_order():
    orders = task_names(2, 4, "1f1b", wide=2)
    assert orders["worker:0"] == orders["worker:1"]
    assert orders["worker:2"] == orders["worker:3"]


ON_GPUS = """\
nodes: {worker: {count: 1, devices: {gpu: 4}}}
inputs: {x: "float32[batch, 64]"}
data: {train: {source: "npz:rows.npz", batch: 64}}
graph:
  - {name: h0, op: fc, in: x, size: 64, place: /gpu:0}
  - {name: h1, op: fc, in: h0, size: 64, place: /gpu:1}
  - {name: h2, op: fc, in: h1, size: 64, place: "/gpu:2-3"}
  - {name: s, op: mul, in: [h2, h2], place: "/gpu:2-3"}
  - {name: loss, op: reduce_sum, in: s, place: "/gpu:2-3"}
train:
  minimize: loss
  microbatches: 8
  optimizer: {op: sgd, learning_rate: 0.1, place: /gpu}
"""


@pytest.mark.parametrize("policy", ["1f1b", "gpipe"])
def test_devices_of_a_node_are_stages_that_run_in_parallel(policy):
    graph = lower_model(load_text(ON_GPUS, "gpus.yaml", Path()))[0]
    (tasks,) = make_schedule(graph, policy).tasks.values()
    rows = {
        devices: [task for task in tasks if task.devices == (devices,)]
        for devices in ("gpu:0", "gpu:1", "gpu:2-3")
    }
    assert sum(map(len, rows.values())) == len(tasks)
    for run in rows.values():
        for before, after in pairwise(run):
            assert before.end <= after.start
    counts = [
        in_flight(list(map(str, own)), first, last)
        for own, first, last in [
            (rows["gpu:0"], "forward", "backward_2"),
            (rows["gpu:1"], "forward_2", "backward"),
        ]
    ]
    assert counts == ([3, 2] if policy == "1f1b" else [8, 8])
    busy = sum(task.end - task.start for task in tasks)
    assert max(task.end for task in tasks) < 0.6 * busy
    assert [task.start for task in tasks] == sorted(task.start for task in tasks)


def test_one_stage_accumulates_gradients():
    assert task_names(1, 3, "1f1b") == {
        "worker:0": tuple(f"forward_backward.{m}" for m in range(3))
    }


def test_without_microbatches_the_schedule_is_empty():
    assert task_names(2, 1, "1f1b") == {}


def test_choices_include_ops_inserted_for_microbatches(tmp_path):
    plan = compile(find_file("specs/mlp_pipeline.yaml"), tmp_path / "build")
    reasons = {choice.what: choice.why for choice in plan.choices}
    assert reasons["8 microbatches of a step"].startswith("in the order of 1f1b")
    what = "loss.total (sum_microbatches) at /node:worker:1/cpu"
    assert reasons[what] == "inserted: combines 'loss' of all microbatches"


def test_the_memory_of_a_step_is_that_of_the_microbatches_in_flight():
    """A stage keeps its input of each microbatch, 8 rows of 64, for the backward task.

    With 1f1b it keeps those of the microbatches that are in this and the later stages,
    with gpipe those of all microbatches. In addition there are the gradients of a layer
    and their sums, and the messages: one each way, and one that arrives ahead of its
    use. The last stage is slow, so with gpipe 11 more messages wait.
    """
    graph = chain(4, 16)
    kept = 8 * 64 * 4
    gradients = 2 * (64 * 64 + 64) * 4

    def most(policy):
        step = LoweredGraph(graph, rows=None, hook="step")
        memory = MemoryEstimate(step, make_schedule(graph, policy))
        return [
            (memory.activation_bytes(f"worker:{i}") - gradients) / kept
            for i in range(3)
        ]

    assert most("1f1b") == [4 + 3, 3 + 4, 2 + 4]
    assert most("gpipe") == [15 + 3, 15 + 4, 15 + 4 + 11]


def test_nodes_waiting_for_each_other_are_an_error():
    graph = chain(3, 2)
    ways = {
        (graph.nodes(op), graph.nodes(graph.receives[edge])): edge
        for edge, op in graph.sends.items()
    }
    there, back = ways[("worker:0",), ("worker:1",)], ways[("worker:2",), ("worker:1",)]
    other = {there: back, back: there}
    crossed = graph.with_ops(
        op.with_attrs(edge=other.get(op.attrs["edge"], op.attrs["edge"]))
        if op.kind == "send"
        else op
        for op in graph.ops
    )
    with pytest.raises(GraphError, match="wait for each other"):
        make_schedule(crossed, "1f1b")
