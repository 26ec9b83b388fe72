"""`remat` blocks: several in one model, and blocks at several places."""

import pytest
from support.small_models import load_model

from placer.compiler.driver import lower_model
from placer.errors import GraphError


def step_of(graph, nodes="{worker: {count: 2}}"):
    """The final graph of a training step with these ops, on x and y."""
    text = f"""\
nodes: {nodes}
inputs:
  x: float32[batch, 4]
  y: float32[batch, 4]
data:
  train: {{source: "npz:rows.npz", batch: 8}}
graph:
{graph}
train:
  minimize: loss
  optimizer: {{op: sgd, learning_rate: 0.1}}
"""
    return lower_model(load_model(text))[0]


BLOCKS = """\
  - remat: true
    ops:
      - {name: a, op: fc, in: x, size: 4, activation: tanh}
      - {name: b, op: fc, in: a, size: 4, activation: tanh}
  - remat: true
    ops:
      - {name: c, op: fc, in: b, size: 4, activation: tanh}
      - {name: d, op: mul, in: [x, c]}
  - {name: loss, op: mean_squared_error, in: [d, y]}
"""
ACROSS = """\
  - remat: true
    ops:
      - {name: a, op: fc, in: x, size: 4, activation: tanh, place: "/node:worker:0"}
      - {name: b, op: fc, in: x, size: 4, activation: tanh, place: "/node:worker:1"}
      - {name: both, op: add, in: [a, b], place: "/node:worker:1"}
      - {name: c, op: fc, in: both, size: 4, activation: tanh, place: "/node:worker:1"}
  - {name: loss, op: mean_squared_error, in: [c, y], place: "/node:worker:1"}
"""
WHOLE = """\
  - remat: true
    ops:
      - {name: a, op: fc, in: x, size: 4, activation: tanh}
      - {name: b, op: cumsum, in: a, axis: 0}
      - {name: c, op: fc, in: b, size: 4, activation: tanh}
  - {name: loss, op: mean_squared_error, in: [c, y]}
"""


LOSS = """\
  - {name: a, op: fc, in: x, size: 4}
  - remat: true
    ops:
      - {name: loss, op: mean_squared_error, in: [a, y]}
"""
WITHOUT_EFFECT = """\
model.yaml:11:16: 'remat' of the scope with 'loss' has no effect: none of its ops works row by \
row, so all results are saved
  11 |       - {name: loss, op: mean_squared_error, in: [a, y]}
     |                ^^^^
  hint: leave remat out: it has nothing to recompute"""


def test_a_block_without_an_op_that_can_be_recomputed_is_refused():
    with pytest.raises(GraphError) as caught:
        step_of(LOSS)
    assert str(caught.value) == WITHOUT_EFFECT


def sends(step):
    """The values that cross nodes, with their targets."""
    messages = [(op.operands, str(op.attrs["to"])) for op in step.of_kind("send")]
    return sorted((name, to) for names, to in messages for name in names)


def test_gradients_of_two_blocks_use_the_recomputed_values_of_their_block():
    step = step_of(BLOCKS)
    operands = {
        op.kind + " of " + op.results[0].name: op.operands
        for op in step.ops
        if op.is_gradient
    }
    assert operands == {
        "mean_squared_error.grad of d.grad": ("loss.res", "loss.grad"),
        "mul.grad of c.grad": ("d.again.2.res", "x.again.2", "c.again.2", "d.grad"),
        "fc.grad of b.grad": ("c.again.2.res", "b.again.2", "c.w", "c.grad"),
        "fc.grad of a.grad": ("b.again.res", "a.again", "b.w", "b.grad"),
        "fc.grad of a.w.grad": ("a.again.res", "x.again", "a.w", "a.grad"),
    }


def test_an_input_of_two_blocks_is_held_until_the_gradients_of_each():
    holds = {op.name: op.operands for op in step_of(BLOCKS).of_kind("hold")}
    assert holds == {
        "x.again": ("x", "b.grad"),
        "b.again.2": ("b", "d.grad"),
        "x.again.2": ("x", "d.grad"),
    }


def test_a_block_at_two_places_sends_nothing_twice():
    step = step_of(ACROSS)
    assert sends(step) == [
        ("a", "/node:worker:1/cpu"),
        ("a.grad", "/node:worker:0/cpu"),
    ]
    assert sends(step_of(ACROSS.replace("remat: true", "remat: false"))) == sends(step)


def test_a_place_holds_received_values_until_its_own_gradients():
    step = step_of(ACROSS)
    holds = {(*op.operands, step.nodes(op)) for op in step.of_kind("hold")}
    assert holds == {
        ("x", "a.grad.copy", ("worker:0",)),
        ("x.1", "c.grad", ("worker:1",)),
        ("a.copy", "c.grad", ("worker:1",)),
    }


def test_rows_are_gathered_only_once():
    step = step_of(WHOLE)
    assert sends(step) == sends(step_of(WHOLE.replace("remat: true", "remat: false")))
    assert {"a.again", "c.again"} <= step.values.keys()


def test_gradients_of_kept_values_use_recomputed_operands():
    kept = WHOLE.replace(
        "{name: b, op: cumsum, in: a, axis: 0}", "{name: b, op: batch_norm, in: a}"
    )
    step = step_of(kept)
    original = {
        name
        for op in step.ops
        if op.is_gradient
        for name in op.operands
        if name in step.values and f"{name}.again" in step.values
    }
    assert original == set()
    assert "a.again" in step.values
