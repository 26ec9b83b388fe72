"""Every conversion, between sets of nodes that are the same, apart, or share some."""

import pytest
from support.small_models import model

from placer.compiler import lowered
from placer.graph.kinds import is_conversion
from placer.passes.transfer import is_local

A = "/node:worker:0-1/cpu"
SETS = {
    "the same": "/node:worker:0-1/cpu",
    "a part": "/node:worker:1/cpu",
    "more": "/node:worker:0-2/cpu",
    "some and others": "/node:worker:1-2/cpu",
    "others": "/node:worker:2-3/cpu",
    "other nodes": "/node:front/cpu",
    "servers": "/node:ps:*/cpu",
}
"""Where a value of A goes."""

USES = {
    "S to S": "{name: t, op: tanh, in: h}",
    "S to R": "{name: t, op: softmax, in: h, axis: 0}",
    "R to R": "{name: t, op: tanh, in: whole}",
    "R to S": "{name: t, op: mul, in: [whole, rows]}",
    "P to R": "{name: t, op: tanh, in: mean}",
    "P to P": "{name: t, op: scale, in: mean, factor: 2.0}",
    "R to P": "{name: t, op: add, in: [bent, other]}",
}
"""An op at the other place, and what it makes of what it takes."""

INSERTED = {
    "S to S": ("reshard", "h"),
    "S to R": ("all_gather", "h"),
    "R to R": ("copy", "whole"),
    "R to S": ("shard", "whole"),
    "P to R": ("all_reduce", "mean"),
    "P to P": ("fold", "mean"),
    "R to P": ("partial", "bent"),
}
BACKWARD = {
    "S to S": "reshard",
    "S to R": "reduce_scatter",
    "R to R": "fold",
    "R to S": "spread",
    "P to R": "partial",
    "P to P": "copy",
    "R to P": "partial",
}
"""What brings the cotangent back: the way of the dual layouts."""


def step_of(use, place):
    """The graphs of a step after `layout` and in the end."""
    text = f"""\
nodes:
  worker: {{count: 4}}
  front: {{count: 2}}
  ps: {{count: 3}}
inputs:
  x: float32[batch, 4]
data:
  train: {{source: "npz:rows.npz", batch: 12}}
graph:
  - {{name: h, op: fc, in: x, size: 4, place: "{A}"}}
  - {{name: whole, op: softmax, in: h, axis: 0, place: "{A}"}}
  - {{name: mean, op: reduce_mean, in: h, place: "{A}"}}
  - {{name: bent, op: tanh, in: mean, place: "{A}"}}
  - place: "{place}"
    ops:
      - {{name: rows, op: fc, in: x, size: 4}}
      - {{name: other, op: reduce_mean, in: rows}}
      - {use}
      - {{name: sum, op: reduce_sum, in: t}}
      - {{name: loss, op: add, in: [sum, other]}}
train:
  minimize: loss
  metrics: [loss]
  optimizer: {{op: sgd, learning_rate: 0.1, place: /node:ps}}
"""
    seen = {}
    step, _ = lowered(model(text), lambda name, graph: seen.setdefault(name, graph))
    return seen["layout"], step


@pytest.mark.parametrize("to", SETS)
@pytest.mark.parametrize("way", USES)
def test_a_value_goes_to_any_set_of_nodes_in_any_layout(way, to):
    laid_out, step = step_of(USES[way], SETS[to])
    kind, name = INSERTED[way]
    have, _, need = way.partition(" to ")
    there = laid_out.producers["t"]
    (taken,) = [v for v in there.operands if v == name or v.partition(".")[0] == name]
    one = len(laid_out.nodes(there)) == 1
    if taken == name:  # nothing to do
        assert laid_out.values[taken].layout in (need, "R" if one else need)
        return
    conversion = laid_out.producers[taken]
    assert conversion.operands == (name,)
    assert laid_out.values[name].layout == have
    if one:  # where everything is whole
        assert conversion.result.layout == "R"
    else:
        assert (conversion.kind, conversion.result.layout) == (kind, need)
    assert set(laid_out.nodes(there)) <= set(laid_out.nodes(conversion))
    sent = [op for op in step.of_kind("send") if name in op.operands]
    local = is_local(
        (have, conversion.result.layout),
        laid_out.nodes(laid_out.producers[name]),
        laid_out.nodes(conversion),
        laid_out.cluster.workers,
    )
    assert len(sent) == (0 if local else 1)


@pytest.mark.parametrize("to", [to for to in SETS if to != "a part"])
@pytest.mark.parametrize("way", USES)
def test_its_cotangent_comes_back_by_the_way_of_the_dual_layouts(way, to):
    laid_out, _ = step_of(USES[way], SETS[to])
    _, name = INSERTED[way]
    here, there = (laid_out.nodes(laid_out.producers[n]) for n in (name, "t"))
    kinds = {
        op.kind
        for op in laid_out.ops
        if is_conversion(op.kind) and ".grad" in op.operands[0]
    }
    if BACKWARD[way] == "copy" and set(here) <= set(there):
        assert "copy" not in kinds
    elif here != there:
        assert BACKWARD[way] in kinds
