"""Every conversion, between equal, disjoint and overlapping sets of nodes."""

import pytest
from support.small_models import load_model

from placer.compiler.driver import lower_model
from placer.compiler.graph.structural_ops import (
    CONVERSIONS,
    conversion_kind,
    is_conversion,
)
from placer.compiler.passes.messages.transfer import is_local

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
"""The place to which a value of A goes."""

USES = {
    "S to S": "{name: t, op: tanh, in: h}",
    "S to R": "{name: t, op: softmax, in: h, axis: 0}",
    "R to R": "{name: t, op: tanh, in: whole}",
    "R to S": "{name: t, op: mul, in: [whole, rows]}",
    "P to R": "{name: t, op: tanh, in: mean}",
    "P to P": "{name: t, op: scale, in: mean, factor: 2.0}",
    "R to P": "{name: t, op: add, in: [bent, other]}",
}
"""An op at the other place, by the layouts that it has and needs."""

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
"""The conversion of the cotangent back: that between the dual layouts."""


def step_of(use, place):
    """The graph of a step after `layout`, and after all passes."""
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
    graphs = {}
    step, *_ = lower_model(
        load_model(text), lambda name, graph: graphs.setdefault(name, graph)
    )
    return graphs["layout"], step


@pytest.mark.parametrize("to", SETS)
@pytest.mark.parametrize("way", USES)
def test_a_value_goes_to_any_set_of_nodes_in_any_layout(way, to):
    laid_out, step = step_of(USES[way], SETS[to])
    kind, name = INSERTED[way]
    have, _, need = way.partition(" to ")
    user = laid_out.producers["t"]
    (operand,) = [v for v in user.operands if v == name or v.partition(".")[0] == name]
    one = len(laid_out.nodes(user)) == 1
    if operand == name:  # nothing to convert
        assert laid_out.values[operand].layout in (need, "R" if one else need)
        return
    conversion = laid_out.producers[operand]
    assert conversion.operands == (name,)
    assert laid_out.values[name].layout == have
    targets = len(laid_out.nodes(conversion))
    if one:  # on a single node every value is R
        assert conversion.result.layout == "R"
        assert conversion.kind == conversion_kind(have, "R", targets)
    else:
        assert (conversion.kind, conversion.result.layout) == (kind, need)
    assert set(laid_out.nodes(user)) <= set(laid_out.nodes(conversion))
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
def test_the_cotangent_comes_back_in_the_dual_layouts(way, to):
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


def test_a_sum_for_a_single_node_is_a_reduce():
    one_node, _ = step_of(USES["P to R"], SETS["a part"])
    conversion = one_node.producers["mean.reduce"]
    assert (conversion.kind, conversion.operands) == ("reduce", ("mean",))
    assert "mean.all_reduce" not in one_node.values
    two_nodes, _ = step_of(USES["P to R"], SETS["others"])
    assert two_nodes.producers["mean.all_reduce"].kind == "all_reduce"


@pytest.mark.parametrize("layouts", CONVERSIONS)
def test_only_a_sum_depends_on_the_number_of_targets(layouts):
    assert conversion_kind(*layouts, targets=2) == CONVERSIONS[layouts]
    to_one = "reduce" if layouts == ("P", "R") else CONVERSIONS[layouts]
    assert conversion_kind(*layouts, targets=1) == to_one
    assert is_conversion(to_one)
