"""The items of a step: they are the calls of the programs, and bring the plan's bytes."""

from functools import cache
from pathlib import Path

import pytest

from placer.compiler.driver import compile_in_memory, lower_model
from placer.compiler.frontend.python.read import read_model
from placer.compiler.placing.costs import DECLARED, Machine, Sample, measured_costs
from placer.compiler.placing.step_items import step_items
from placer.compiler.placing.step_time import Links, simulate
from placer.compiler.schedule.schedule import make_schedule
from placer.compiler.schedule.units import LoweredGraph

SPECS = Path(__file__).parents[3] / "specs"


@cache
def lowered(name, **nodes):
    model = read_model(
        SPECS / f"{name}.yaml", nodes=nodes or None, overrides=None, code=True
    )
    step = lower_model(model).step
    schedule = make_schedule(step, model.settings.train.schedule)
    return LoweredGraph(step, step.batch, "step"), schedule


def items_of(name, costs=DECLARED, groups=None, **nodes):
    return step_items(*lowered(name, **nodes), costs, groups or {})


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("mlp_pipeline", {}),
        ("transformer_pipeline", {}),
        ("digits_cnn", {"worker": 4, "ps": 2}),
        ("wide_deep", {}),
        ("digits_async", {}),
    ],
)
def test_the_messages_have_the_bytes_of_the_plan(name, nodes):
    plan = compile_in_memory(SPECS / f"{name}.yaml", nodes=nodes).plan
    step = simulate(items_of(name, **nodes))
    assert sum(step.link_bytes.values()) == sum(edge.nbytes for edge in plan.step_edges)


def test_the_items_of_a_node_are_the_calls_of_its_program():
    names = [item.name for item in items_of("mlp_pipeline").items["worker:1"]]
    function = "h3, logits, loss, accuracy"
    task = ["task", "read", "receive 1", function, "sum_microbatches", "send 2"]
    assert names[:2] == ["step", "parameter"]
    assert names[2 : 2 + 8 * len(task)] == task * 8
    after = names[2 + 8 * len(task) :]
    assert after[:2] == ["microbatch_totals", "record"]
    assert [*after[2:]] == [
        f"update {p}" for p in ("h3.w", "h3.b", "logits.w", "logits.b")
    ]


MACHINE = Machine("a processor", 2, {}, {})


def test_a_piece_with_an_entry_takes_its_times_and_others_are_named():
    piece = (
        "cpu fc(float32[batch, 64], float32[64, 256], float32[256])"
        " {activation = relu, residual = true}"
    )
    sample = Sample(16, (100,) * 5, flops=1_000_000)
    costs = measured_costs({piece: [sample]}, MACHINE)
    found = items_of("mlp_pipeline", costs, {"h2": "other", "pixels": "other"})
    # All other pieces have the rate of the only one: 0.1 ms per million FLOPs.
    assert found.missing == ("accuracy", "h1", "h3", "logits", "loss", "other")


def test_the_groups_of_ops_name_the_pieces():
    items = items_of("mlp_pipeline", groups={"h1": "layers", "h2": "layers"}).items
    assert "pixels, layers" in {item.name for item in items["worker:0"]}


def test_without_overheads_a_step_ends_as_the_schedule_says():
    step, schedule = lowered("mlp_pipeline")
    # A picosecond per FLOP, as the schedule counts: all else is free.
    free = {name: [Sample(1, (0,) * 5)] for name in DECLARED.entries}
    costs = measured_costs({**free, "rate": [Sample(1, (1_000,) * 5, 1_000)]}, MACHINE)
    assert costs.per_mflop == 1_000_000_000
    found = simulate(step_items(step, schedule, costs), links=Links(latency=0))
    busy = {node: found.cpu(node) for node in found.busy}
    flops = {
        node: sum(run.end - run.start - 1 for run in runs)
        for node, runs in schedule.tasks.items()
    }
    for node, cost in flops.items():
        assert busy[node] == pytest.approx(1_000 * cost, rel=1e-3)
