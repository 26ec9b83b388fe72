"""Models of each kind go on after failures of each kind of their nodes, with the same bits."""

from __future__ import annotations

import pytest
from support.faulty_runs import Fault, Faulty, check_undisturbed, make_faulty

import placer
from placer.system.resources import find_file

SPECS = find_file("specs/digits.yaml").parent
ASYNCHRONOUS = ("digits_heter", "digits_hybrid")
SYNC = {"train.optimizer.0.update": "sync"}
NODES = {
    "digits": ("worker:0", "worker:1", "ps:1"),
    "digits_all_reduce": ("worker:0", "worker:1"),
    "digits_heter": ("worker:0", "worker:1", "heter:1", "ps:0"),
    "digits_hybrid": ("worker:0", "worker:1", "ps:0"),
    "digits_threads": ("worker:0.0", "worker:0.1", "worker:1.1", "ps:0"),
    "mlp_pipeline": ("worker:0", "worker:1"),
    "transformer_pipeline": ("worker:0", "worker:1"),
    "wide_deep_sparse": ("worker:0", "worker:1", "ps:1"),
}
"""For each model, nodes of each kind. The first is the control node."""


@pytest.fixture
def faulty(request, tmp_path) -> Faulty:
    model = request.param
    build = tmp_path / "build"
    changes = SYNC if model in ASYNCHRONOUS else {}
    placer.compile(SPECS / f"{model}.yaml", build, overrides=changes)
    return make_faulty(build, steps=40, restarts=100)


def calls_of_each_sort(points: list[str]) -> list[str]:
    """Return the last call of each sort of the second step, and of an evaluation."""
    calls = [p.partition(" call ") for p in points if p.startswith(("step 2,", "eval"))]
    found = {(place, call.partition(": ")[2]): call for place, _, call in calls}
    return [f"{place} call {call}" for (place, _), call in found.items()]


@pytest.mark.slow
@pytest.mark.parametrize("faulty", NODES, indirect=True, ids=str)
def test_a_model_goes_on_after_failures_of_each_kind_of_node(faulty, request):
    """One after another, at one call of each sort of a step and of an evaluation."""
    whole = faulty.run()
    faults: list[Fault] = []
    for node in NODES[request.node.callspec.id]:
        for point in calls_of_each_sort(whole.points[node]):
            step = 2 + len(faults) % 36
            faults.append(Fault(node, point.replace("step 2,", f"step {step},")))
    assert len(faults) > 10
    run = faulty.run(*faults)
    check_undisturbed(run, whole, restarts=None)
    assert len(run.restarts) > len(faults) / 3
