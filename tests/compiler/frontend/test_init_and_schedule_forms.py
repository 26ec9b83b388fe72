"""Initializers and schedules, from the spec through the text of the graph."""

import pytest
from support.initial import compute_values

from placer.compiler.frontend import load_text
from placer.compiler.graph.text import parse_graph, print_graph
from placer.plan.settings.training import initializers
from placer.tables.learning_rate import build_schedule

SPEC = """\
nodes: {worker: {}}
inputs: {x: "float32[batch, 3]"}
data: {train: {source: "npz:rows.npz", batch: 4}}
graph:
  - {name: h, op: fc, in: x, size: 4}
  - {name: alone, op: parameter, shape: [4, 4], init: %s}
  - {name: y, op: matmul, in: [h, alone]}
  - {name: loss, op: reduce_mean, in: y}
parameters:
  - {match: h.w, init: %s}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: %s}}
"""


def load_graph(folder, init="zeros", rate="0.1"):
    return load_text(SPEC % (init, init, rate), "model.yaml", folder).graph


def init_of(graph, name):
    return graph.producers[name].attrs["init"]


@pytest.mark.parametrize(("alias", "name"), initializers.ALIASES.items())
def test_aliases_of_initializers_are_replaced_in_the_graph(alias, name, tmp_path):
    graph = load_graph(tmp_path, alias if alias != "eye" else "{eye: 2.0}")
    expected = name if alias != "eye" else {name: 2.0}
    assert init_of(graph, "h.w") == init_of(graph, "alone") == expected


@pytest.mark.parametrize(
    "init",
    [
        *initializers.BARE,
        "{uniform: [-1, 2.5]}",
        "{normal: {mean: 1, std: 0.02}}",
        "{truncated_normal: 0.02}",
        "{variance_scaling: {scale: 1e-3, mode: fan_out, distribution: uniform}}",
        "{orthogonal: 2}",
    ],
)
def test_initializers_round_trip_through_the_text_of_the_graph(init, tmp_path):
    graph = load_graph(tmp_path, init)
    parsed = parse_graph(print_graph(graph))
    assert parsed == graph
    how = {"seed": 0, "name": "h.w", "shape": (3, 4), "start": 0, "stop": 12}
    first = compute_values(init_of(graph, "h.w"), dtype="float64", **how)
    second = compute_values(init_of(parsed, "h.w"), dtype="float64", **how)
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize(
    "rate",
    [
        "{piecewise: {boundaries: [5, 10], values: [1, 0.1, 1e-2]}}",
        "{inverse_time: {init: 0.1, rate: 0.5, steps: 10, staircase: true}}",
        "{natural_exp: {init: 0.1, rate: 0.5, steps: 10}}",
        "{polynomial: {init: 0.1, end: 0, steps: 10, power: 2, cycle: true}}",
        "{linear: {init: 0.1, end: 0, steps: 10}}",
        "{noam: {size: 8, warmup: 4, factor: 0.5}}",
        "{linear_scaling: {warmup: 3, then: {cosine: {init: 1, steps: 9}}}}",
    ],
)
def test_schedules_round_trip_through_the_text_of_the_graph(rate, tmp_path):
    graph = load_graph(tmp_path, rate=rate)
    parsed = parse_graph(print_graph(graph))
    assert parsed == graph
    (first,), (second,) = (g.of_kind("optimizer") for g in (graph, parsed))
    rates = [build_schedule(op.attrs["learning_rate"]) for op in (first, second)]
    assert [rates[0](t) for t in range(20)] == [rates[1](t) for t in range(20)]
