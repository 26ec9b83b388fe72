"""In what order nodes run their blocks for the microbatches of a step."""

from itertools import pairwise
from pathlib import Path

import pytest

from placer.analysis.memory import Memory
from placer.analysis.schedule import make_schedule
from placer.analysis.units import Phase
from placer.compiler import compile, lowered
from placer.errors import GraphError
from placer.resources import find
from placer.spec import load_text


def chain(stages, microbatches, wide=1):
    """The graph of a chain of equal layers, each on a set of workers of its own."""
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
    return lowered(load_text(text, "chain.yaml", Path()))[0]


def turns(stages, microbatches, policy, wide=1):
    found = make_schedule(chain(stages, microbatches, wide), policy)
    return {node: found.of(node) for node in found.turns}


def test_gpipe_sends_all_forwards_and_then_all_backwards():
    found = turns(2, 3, "gpipe")
    forward = tuple(f"forward.{m}" for m in range(3))
    assert found == {
        "worker:0": (*forward, *(f"backward.{m}" for m in range(3))),
        "worker:1": tuple(f"forward_backward.{m}" for m in range(3)),
    }


def in_flight(order, first="forward", last="backward"):
    """How many microbatches a node holds at most."""
    held = most = 0
    for turn in order:
        held += turn.startswith(f"{first}.") - turn.startswith(f"{last}.")
        most = max(most, held)
    return most


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_1f1b_holds_no_more_microbatches_than_stages_to_come(stages):
    found = turns(stages, 8, "1f1b")
    for stage in range(stages - 1):
        assert in_flight(found[f"worker:{stage}"]) == stages - stage
    gpipe = turns(stages, 8, "gpipe")
    assert in_flight(gpipe["worker:0"]) == 8


@pytest.mark.parametrize("policy", ["1f1b", "gpipe"])
def test_each_block_runs_once_for_each_microbatch_in_their_order(policy):
    for order in turns(3, 5, policy).values():
        blocks = {turn.partition(".")[0] for turn in order}
        for block in blocks:
            own = [turn for turn in order if turn.partition(".")[0] == block]
            assert own == [f"{block}.{m}" for m in range(5)]


def test_stages_of_several_workers_keep_the_same_order():
    found = turns(2, 4, "1f1b", wide=2)
    assert found["worker:0"] == found["worker:1"]
    assert found["worker:2"] == found["worker:3"]


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
def test_devices_of_a_node_are_stages_that_work_side_by_side(policy):
    graph = lowered(load_text(ON_GPUS, "gpus.yaml", Path()))[0]
    (found,) = make_schedule(graph, policy).turns.values()
    rows = {
        devices: [turn for turn in found if turn.devices == (devices,)]
        for devices in ("gpu:0", "gpu:1", "gpu:2-3")
    }
    assert sum(map(len, rows.values())) == len(found)
    for own in rows.values():
        for before, after in pairwise(own):
            assert before.end <= after.begin
    held = [
        in_flight(list(map(str, own)), first, last)
        for own, first, last in [
            (rows["gpu:0"], "forward", "backward_2"),
            (rows["gpu:1"], "forward_2", "backward"),
        ]
    ]
    assert held == ([3, 2] if policy == "1f1b" else [8, 8])
    busy = sum(turn.end - turn.begin for turn in found)
    assert max(turn.end for turn in found) < 0.6 * busy
    assert [turn.begin for turn in found] == sorted(turn.begin for turn in found)


def test_one_stage_adds_gradients_up():
    assert turns(1, 3, "1f1b") == {
        "worker:0": tuple(f"forward_backward.{m}" for m in range(3))
    }


def test_without_microbatches_there_are_no_turns():
    assert turns(2, 1, "1f1b") == {}


def test_what_is_put_in_for_microbatches_is_told(tmp_path):
    plan = compile(find("specs/mlp_pipeline.yaml"), tmp_path / "build")
    told = {choice.what: choice.why for choice in plan.choices}
    assert told["8 microbatches of a step"].startswith("in the order of 1f1b")
    what = "loss.total (sum_microbatches) at /node:worker:1/cpu"
    assert told[what] == "put in: makes one value of 'loss' of all microbatches"


def test_the_memory_of_a_step_is_that_of_the_microbatches_in_flight():
    """Of each a stage keeps what came in, 8 rows of 64, for its backward: by 1f1b of
    those that are in the stages to come, by gpipe of all. Beside it there are the
    gradients of a layer and their sum, and what goes and comes at the moment: one
    message each way, and one ahead. The last stage is slow: by gpipe 11 more wait."""
    graph = chain(4, 16)
    kept = 8 * 64 * 4
    gradients = 2 * (64 * 64 + 64) * 4

    def most(policy):
        step = Phase(graph, rows=None, evaluating=False)
        memory = Memory(step, make_schedule(graph, policy))
        return [
            (memory.activations(f"worker:{i}") - gradients) / kept for i in range(3)
        ]

    assert most("1f1b") == [4 + 3, 3 + 4, 2 + 4]
    assert most("gpipe") == [15 + 3, 15 + 4, 15 + 4 + 11]


def test_nodes_that_wait_for_each_other_are_an_error():
    graph = chain(3, 2)
    ways = {
        (graph.nodes(op), graph.nodes(graph.listens[edge])): edge
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
    with pytest.raises(GraphError, match="it waits for nodes that wait for it"):
        make_schedule(crossed, "1f1b")
