"""An analysis of the first node of a class is valid for every node of the class."""

from contextlib import contextmanager
from pathlib import Path

import pytest

from placer.compiler.driver import lower_model, lowered_graphs
from placer.compiler.emit.plan import make_plan
from placer.compiler.emit.programs import emit_programs
from placer.compiler.emit.tables import plan_tables
from placer.compiler.frontend import load_text
from placer.compiler.graph.model import Model
from placer.compiler.memory.in_place import InPlaceAnalysis
from placer.compiler.schedule import node_classes
from placer.compiler.schedule.node_classes import NodeClasses
from placer.compiler.schedule.schedule import make_schedule

ROWS = """
inputs: {x: "float32[batch, 8]", y: "int32[batch]"}
data: {train: {source: "npz:x.npz", batch: 24}, eval: {source: "npz:x.npz", batch: 24}}
graph:
"""
TRAIN = """
train:
  minimize: loss
  metrics: [loss]
"""
LAYERS = """
  - {{name: h, op: fc, in: x, size: 16, activation: relu, place: "/node:{0}"}}
  - {{name: g, op: fc, in: h, size: 16, place: "/node:{1}"}}
  - {{name: i, op: fc, in: g, size: 16, params: {{w: g.w}}, place: "/node:{2}"}}
  - {{name: loss, op: softmax_cross_entropy, in: [i, y], place: "/node:{2}"}}
"""
CASES = {
    "servers": ("worker: {count: 4}, ps: {count: 3}", "worker worker worker", "ps", ""),
    "idle": ("worker: {count: 2}, ps: {count: 9}", "worker worker worker", "ps", ""),
    "all_reduce": ("worker: {count: 4}", "worker worker worker", "worker", ""),
    "two_stages": ("worker: {count: 6}", "worker:0-2 worker:3-5 worker", "worker", ""),
    "one_to_all": ("worker: {count: 4}", "worker:2 worker worker", "worker", ""),
    "overlap": ("worker: {count: 6}", "worker:0-3 worker:2-5 worker:1", "worker", ""),
    "heter": ("worker: {count: 4}, heter: {count: 3}", "worker heter worker", "worker", ""),
    "microbatches": (
        "worker: {count: 6}, ps: {count: 3}",
        "worker worker:0-2 worker:3-5",
        "ps",
        "microbatches: 2",
    ),
    "gpipe": (
        "worker: {count: 4}",
        "worker:0-1 worker:2-3 worker:2-3",
        "worker",
        "microbatches: 2, schedule: gpipe",
    ),
}  # fmt: skip


def model(case: str) -> Model:
    nodes, places, optimizer, settings = CASES[case]
    lines = [
        "name: many",
        f"nodes: {{{nodes}}}",
        ROWS.strip(),
        LAYERS.format(*places.split()).strip("\n"),
        TRAIN.strip(),
        f'  optimizer: {{op: adam, learning_rate: 0.1, place: "/node:{optimizer}"}}',
        *(f"  {each}" for each in settings.split(", ") if each),
    ]
    return load_text("\n".join(lines) + "\n", "many.yaml", Path())


@pytest.fixture
def separate_nodes(monkeypatch):
    """A context in which every node is a class of its own."""

    @contextmanager
    def context():
        with monkeypatch.context() as patched:
            patched.setattr(
                node_classes, "_group_nodes", lambda nodes: {n: [n] for n in nodes}
            )
            yield

    return context


def plan_and_programs(spec):
    lowered = lower_model(spec)
    step, evaluation, _ = lowered
    graphs = lowered_graphs(spec, lowered)
    schedule = make_schedule(step, spec.settings.train.schedule)
    tables = plan_tables(spec, step, evaluation)
    programs = emit_programs(step, graphs, tables, schedule)
    plan = make_plan(spec, graphs, tables, schedule, programs, {})
    return plan, programs.files


@pytest.mark.parametrize("case", CASES)
def test_plan_and_programs_are_the_same_without_classes(case, separate_nodes):
    spec = model(case)
    with separate_nodes():
        expected = plan_and_programs(spec)
    assert plan_and_programs(spec) == expected


@pytest.mark.parametrize("case", CASES)
def test_updates_in_place_are_the_same_without_classes(case, separate_nodes):
    step, evaluation, _ = lower_model(model(case))
    parameters = [
        (node, op.name) for op in step.of_kind("parameter") for node in step.nodes(op)
    ]

    def results():
        readers = InPlaceAnalysis(step, evaluation)
        return {
            each: readers.can_update_in_place(each[0], [each[1]]) for each in parameters
        }

    with separate_nodes():
        expected = results()
    assert results() == expected


def test_workers_that_only_use_servers_are_one_class():
    step, evaluation, _ = lower_model(model("servers"))
    classes = NodeClasses([step, evaluation]).classes
    assert classes["worker:0"] == [f"worker:{i}" for i in range(4)]


def test_workers_that_exchange_ranges_are_one_class():
    step, evaluation, _ = lower_model(model("all_reduce"))
    assert NodeClasses([step, evaluation]).classes == {
        "worker:0": ["worker:0", "worker:1", "worker:2", "worker:3"]
    }


def test_workers_of_different_stages_are_different_classes():
    step, *_ = lower_model(model("two_stages"))
    assert all(len(nodes) == 1 for nodes in NodeClasses([step]).classes.values())


def test_servers_without_blocks_are_one_class():
    step, *_ = lower_model(model("idle"))
    assert [f"ps:{i}" for i in range(5, 9)] in list(
        NodeClasses([step]).classes.values()
    )
