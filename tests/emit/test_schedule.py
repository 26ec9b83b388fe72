"""In what order hosts run their blocks for the microbatches of a step."""

from pathlib import Path

import pytest

from placer.compiler import compile, lowered
from placer.emit.host import Phase
from placer.emit.memory import Memory
from placer.emit.schedule import make_schedule
from placer.files import find
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
    return {host: found.of(host) for host in found.turns}


def test_gpipe_sends_all_forwards_and_then_all_backwards():
    found = turns(2, 3, "gpipe")
    forward = tuple(f"forward.{m}" for m in range(3))
    assert found == {
        "worker:0": (*forward, *(f"backward.{m}" for m in range(3))),
        "worker:1": tuple(f"forward_backward.{m}" for m in range(3)),
    }


def in_flight(order, first="forward", last="backward"):
    """How many microbatches a host holds at most."""
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
