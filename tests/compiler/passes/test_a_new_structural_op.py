"""A structural op that only this test declares goes through every pass and analysis."""

from dataclasses import replace

import pytest
from support.small_models import load_model

from placer.compiler.driver import compile as compile_model
from placer.compiler.emit.choices import explain_choices
from placer.compiler.graph.attributes import attributes, own
from placer.compiler.graph.graph import Op
from placer.compiler.graph.structural_kind import StructuralKind
from placer.compiler.graph.structural_ops import KINDS
from placer.compiler.graph.text import parse_graph, print_graph
from placer.compiler.memory.in_place import InPlaceAnalysis
from placer.compiler.memory.node_memory import MemoryEstimate
from placer.compiler.passes import PASSES, lower
from placer.compiler.schedule.node_classes import NodeClasses
from placer.compiler.schedule.schedule import make_schedule
from placer.compiler.schedule.units import LoweredGraph

PROBE = StructuralKind(
    name="probe",
    doc="show a value to the user",
    attrs=attributes(own("every", int, "steps", passed=True)),
    why="inserted: shows {operands} every {every} steps",
    effect=True,
    host_memory=True,
    layout="operands",
    microbatches="operands",
    retains=True,
)

TEXT = """\
name: probed
nodes: {worker: {count: 2, devices: {cpu: 1, gpu: 1}}, ps: {count: 1}}
inputs: {x: "float32[batch, 4]", y: "int32[batch]"}
data:
  train: {source: "npz:rows.npz", batch: 8}
  eval: {source: "npz:rows.npz", batch: 4}
graph:
  - {name: h, op: fc, in: x, size: 3, place: /node:worker}
  - {name: p, op: fc, in: h, size: 2, place: /node:worker}
  - {name: loss, op: softmax_cross_entropy, in: [p, y], place: /node:worker}
train:
  minimize: loss
  metrics: [loss]
  microbatches: MICROBATCHES
  optimizer: {op: sgd, learning_rate: 0.1}
predict: {outputs: [p]}
"""


@pytest.fixture
def declared(monkeypatch):
    monkeypatch.setitem(KINDS, "probe", PROBE)


def probed_model(value, microbatches):
    model = load_model(TEXT.replace("MICROBATCHES", str(microbatches)))
    probe = Op("probe", (value,), attrs={"every": 10})
    ops = [
        new
        for op in model.graph.ops
        for new in ((op, probe) if op.name == value else (op,))
    ]
    return replace(model, graph=model.graph.with_ops(ops))


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize(
    ("value", "place", "layout"),
    [
        ("h", "/node:worker/cpu", "S"),
        ("loss", "/node:worker/cpu", "P"),
        ("x", "/node:worker:0/cpu", "R"),
    ],
)
@pytest.mark.usefixtures("declared")
def test_it_goes_through_every_pass_and_analysis(value, place, layout, microbatches):
    model = probed_model(value, microbatches)
    seen = []
    step, evaluation, _ = lower(
        model.graph, lambda name, graph: seen.append((name, graph))
    )
    assert {name for name, _ in seen} == set(PASSES)
    for name, graph in seen:
        assert len(graph.of_kind("probe")) == (graph.name == "probed"), name
        assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
    (probe,) = step.of_kind("probe")
    assert str(probe.place) == place
    (operand,) = probe.operands
    assert step.values[operand].layout == layout
    assert step.is_repeated(probe) == (microbatches > 1)
    nodes = NodeClasses([step, evaluation])
    assert nodes.representative("worker:1")
    lowered = LoweredGraph(step, 8, hook="step")
    ops = [op for unit in lowered.units_on("worker:0") for op in unit.ops]
    assert probe in ops
    schedule = make_schedule(step, "1f1b")
    assert MemoryEstimate(lowered, schedule).activation_bytes("worker:0") > 0
    choices = {choice.what: choice.why for choice in explain_choices(model, step)}
    why = choices[f"probe.{operand} (probe) at {place}"]
    assert why == f"inserted: shows {operand} every 10 steps"


@pytest.mark.usefixtures("declared")
def test_programs_call_the_method_with_its_name(tmp_path):
    model = probed_model("h", 1)
    compile_model(model, tmp_path / "build")
    program = (tmp_path / "build/worker/program.py").read_text()
    assert "node.probe(h, every=10)\n" in program


@pytest.mark.usefixtures("declared")
def test_what_it_retains_is_not_updated_in_place():
    plain = load_model(TEXT.replace("MICROBATCHES", "1"))
    step, evaluation, _ = lower(plain.graph)
    blocks = [op.name for op in step.parameters]
    assert InPlaceAnalysis(step, evaluation).can_update_in_place("ps:0", blocks)
    step, evaluation, _ = lower(probed_model("h.w", 1).graph)
    assert not InPlaceAnalysis(step, evaluation).can_update_in_place("ps:0", blocks)
