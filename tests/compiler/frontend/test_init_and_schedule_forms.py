"""Initializers and schedules, from the spec through the text of the graph."""

import re

import pytest
from support.initial import compute_values

from placer.compiler.frontend import load_text
from placer.compiler.graph.text import parse_graph, print_graph
from placer.errors import SpecError, SpecErrors
from placer.plan.settings.training import initializers
from placer.plan.settings.training.initializers import read_init
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
    assert init_of(graph, "h.w") == init_of(graph, "alone") == read_init(expected)


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


@pytest.mark.parametrize(
    ("rate", "message", "at"),
    [
        ("-0.1", "'learning_rate' must be a number from 0, not -0.1", "-0.1"),
        ("true", "a learning rate must be a number or a schedule, not true", "true"),
        (
            "[0.1]",
            "a learning rate must be a number or a schedule, not a list",
            "[0.1]",
        ),
        ("{cosin: {}}", "unknown schedule 'cosin'", "cosin"),
        ("{cosine: 0.1}", "'cosine' needs a mapping, not 0.1", "0.1"),
        ("{cosine: {init: 1}}", "'steps' is missing in schedule 'cosine'", "{init: 1}"),
        ("{cosine: {init: 1, stpes: 3}}", "unknown key 'stpes' in schedule", "stpes"),
        (
            "{cosine: {init: 1, steps: 1.5}}",
            "'steps' must be a whole number from 1",
            "1.5",
        ),
        ("{cosine: {init: 1, steps: 0}}", "a whole number from 1, not 0", "0"),
        (
            "{exponential: {init: 1, rate: 0, steps: 2}}",
            "'rate' must be a number greater than 0, not 0",
            "0",
        ),
        (
            "{exponential: {init: 1, rate: 1, steps: 2, staircase: 1}}",
            "'staircase' must be true or false, not 1",
            "1}",
        ),
        (
            "{warmup: {steps: 5}}",
            "'then' is missing in schedule 'warmup'",
            "{steps: 5}",
        ),
        (
            "{warmup: {steps: 5, then: {cosine: {init: x, steps: 1}}}}",
            "'init' must be a number from 0, not the text 'x'",
            "x",
        ),
        ("{cosine: {}, noam: {}}", "a schedule must have one name, not 2", "{cosine"),
        (
            "{piecewise: {boundaries: [5], values: [1]}}",
            "'values' must have one more item than 'boundaries', not 1 for 1",
            "[1]",
        ),
        (
            "{piecewise: {boundaries: [5, 5.5], values: [1, 2, 3]}}",
            "an item of 'boundaries' must be a whole number from 1, not 5.5",
            "5.5",
        ),
        (
            "{piecewise: {boundaries: [6, 5], values: [1, 2, 3]}}",
            "'boundaries' must increase, but 5 follows 6",
            "5]",
        ),
        (
            "{piecewise: {boundaries: 5, values: [1, 2]}}",
            "'boundaries' must be a list, not 5",
            "5,",
        ),
        (
            "{piecewise: {boundaries: [5], values: [1, -2]}}",
            "an item of 'values' must be a number from 0, not -2",
            "-2",
        ),
        (
            "{linear_scaling: {warmup: -1, then: 1}}",
            "'warmup' must be a whole number from 0, not -1",
            "-1",
        ),
        ("{linear_scaling: {then: {noam: 1}}}", "'noam' needs a mapping, not 1", "1}"),
        ("{linear_scaling: {then: fast}}", "not the text 'fast'", "fast"),
    ],
)
def test_wrong_schedules_are_refused_where_they_are_wrong(rate, message, at, tmp_path):
    with pytest.raises(SpecError, match=re.escape(message)) as caught:
        load_graph(tmp_path, rate=rate)
    span = caught.value.span
    assert span.text[span.column - 1 :].startswith(at)


@pytest.mark.parametrize(
    ("init", "message", "at"),
    [
        ("glorot", "unknown initializer 'glorot'", "glorot"),
        ("variance_scaling", "'variance_scaling' needs a value: {variance", "var"),
        ("constant", "'constant' needs a value: {constant: c}", "constant"),
        ("{zeros: 1}", "'zeros' takes no value; write zeros alone", "zeros"),
        ("{kaiming_normal: 1}", "write kaiming_normal alone", "kaiming"),
        ("{constnat: 1}", "unknown initializer 'constnat'", "constnat"),
        ("{eye: 1, identity: 1}", "an initializer must have one name, not 2", "{eye"),
        ("{eye: x}", "'eye' must be a number, not the text 'x'", "x"),
        ('{constant: "1"}', "'constant' must be a number, not the text '1'", '"1"'),
        (
            "{truncated_normal: -1}",
            "'truncated_normal' must be a number greater than 0 or a mapping, not -1",
            "-1",
        ),
        ("{normal: {mean: 1}}", "'std' is missing in 'normal'", "{mean"),
        ("{normal: {std: 1, men: 1}}", "unknown key 'men' in 'normal'", "men"),
        ("{normal: {std: 1, mean: x}}", "'mean' must be a number, not the te", "x"),
        ("{normal: {std: 0}}", "'std' must be a number greater than 0, not 0", "0"),
        ("{variance_scaling: 2}", "'variance_scaling' takes a mapping, not 2", "2"),
        ("{variance_scaling: {scale: 0}}", "a number greater than 0, not 0", "0"),
        (
            "{variance_scaling: {mode: fan_on}}",
            "'mode' must be 'fan_avg' or 'fan_in' or 'fan_out', not the text 'fan_on'",
            "fan_on",
        ),
        ("{uniform: 1}", "'uniform' takes [low, high], not 1", "1"),
        ("{uniform: [1, 2, 3]}", "'uniform' takes [low, high], not a list", "[1"),
        ("{uniform: {low: 1}}", "'uniform' takes [low, high], not a mapping", "{low"),
        ("{uniform: null}", "'uniform' takes [low, high], not nothing", "null"),
        ("{uniform: [1, x]}", "an item of 'uniform' must be a number, not the t", "x"),
        ("{uniform: [2, 1.5]}", "low < high, not [2, 1.5]", "[2"),
        ("{constant: null}", "'constant' must be a number, not nothing", "null"),
        ("{file: {}}", "such as weights.safetensors or checkpoints/best, not", "{}"),
        ("{file: ../w}", "'file' takes a safetensors file or a checkpoint", "../w"),
        ("3", "an initializer must be a name or a mapping with one name", "3"),
    ],
)
def test_wrong_initializers_are_refused_where_they_are_wrong(
    init, message, at, tmp_path
):
    with pytest.raises(SpecErrors) as caught:  # of the op, and of `parameters`
        load_graph(tmp_path, init)
    for error in caught.value.errors:
        assert message in error.message
        assert error.span.text[error.span.column - 1 :].startswith(at)
