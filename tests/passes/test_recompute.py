"""Blocks with `remat`: several in one model, and blocks that stand on several places."""

from support.small_models import model

from placer.compiler import lowered


def step_of(graph, nodes="{worker: {count: 2}}"):
    """The final graph of a training step, of x and y to the mean of a difference."""
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
    return lowered(model(text))[0]


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


def sends(step):
    """What crosses between nodes, and where to."""
    found = [(op.operands, str(op.attrs["to"])) for op in step.of_kind("send")]
    return sorted((name, to) for names, to in found for name in names)


def test_gradients_of_two_blocks_take_the_second_time_of_their_own():
    step = step_of(BLOCKS)
    taken = {
        op.kind + " of " + op.results[0].name: op.operands
        for op in step.ops
        if op.is_gradient
    }
    assert taken == {
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


def test_a_block_on_two_places_sends_nothing_for_its_second_time():
    step = step_of(ACROSS)
    assert sends(step) == [
        ("a", "/node:worker:1/cpu"),
        ("a.grad", "/node:worker:0/cpu"),
    ]
    assert sends(step_of(ACROSS.replace("remat: true", "remat: false"))) == sends(step)


def test_a_place_holds_what_came_to_it_until_its_own_gradients():
    step = step_of(ACROSS)
    holds = {(*op.operands, step.nodes(op)) for op in step.of_kind("hold")}
    assert holds == {
        ("x", "a.grad.copy", ("worker:0",)),
        ("x.1", "c.grad", ("worker:1",)),
        ("a.copy", "c.grad", ("worker:1",)),
    }


def test_rows_that_were_gathered_are_not_gathered_again():
    step = step_of(WHOLE)
    assert sends(step) == sends(step_of(WHOLE.replace("remat: true", "remat: false")))
    assert {"a.again", "c.again"} <= step.values.keys()


def test_gradients_of_what_is_kept_take_what_is_made_again():
    kept = WHOLE.replace(
        "{name: b, op: cumsum, in: a, axis: 0}", "{name: b, op: batch_norm, in: a}"
    )
    step = step_of(kept)
    first_time = {
        name
        for op in step.ops
        if op.is_gradient
        for name in op.operands
        if name in step.values and f"{name}.again" in step.values
    }
    assert first_time == set()
    assert "a.again" in step.values
