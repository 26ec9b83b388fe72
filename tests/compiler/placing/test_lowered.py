"""Candidates as places of ops, and after all passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.placing_cases import CALL, LINK, flops_times, spec_problem
from support.plain.specs import SPECS

from placer.compiler.driver import compile_in_memory, lower_to_tables
from placer.compiler.frontend.python.read import read_model
from placer.compiler.graph.model import Memory
from placer.compiler.placing.candidates import candidates, choose
from placer.compiler.placing.from_model import problem_of
from placer.compiler.placing.groups import movable_groups
from placer.compiler.placing.lowered import lower_best, lower_placed
from placer.compiler.placing.placements import place_candidate
from placer.errors import Span
from placer.place import NodeId


@pytest.mark.parametrize(
    "spec", ["mlp_pipeline", "transformer_pipeline", "digits_cnn", "wide_deep"]
)
def test_the_best_candidates_of_a_spec_compile(spec: str) -> None:
    model, found = spec_problem(spec)
    chosen = choose(candidates(found.problem))
    lowered, refused = lower_best(model, found, chosen, lower_to_tables)
    assert not refused
    assert [each.candidate for each in lowered] == chosen
    for each in lowered:
        assert each.placement is not None
        plan = compile_in_memory(each.model).plan
        assert {node.name for node in plan.nodes} == {
            f"{kind}:{number}"
            for kind, count in each.placement.counts.items()
            for number in range(count)
        }
        for node in plan.nodes:
            memory = each.memory.get(NodeId(node.name), {})
            assert dict(node.device_bytes) == memory


def test_parameters_and_updates_follow_their_ops() -> None:
    model, found = spec_problem("mlp_pipeline")
    one = next(c for c in candidates(found.problem) if len(c.stages) == 2)
    placement = place_candidate(model, found, one)
    assert placement.nodes == ((0,), (1,))
    step = lower_placed(model, lower_to_tables, placement).step.graph
    updates = [op for op in step.ops if op.structure.update == "value"]
    assert len(updates) == len(step.parameters) == 8
    for op in (*updates, *step.parameters):
        parameter = op.operands[0] if op.operands else op.name
        place = placement.places[parameter.rpartition(".")[0]]
        assert step.nodes(op) == step.cluster.nodes(place), op


def test_replicas_are_consecutive_nodes() -> None:
    model = read_model(SPECS / "transformer_pipeline.yaml", nodes={"worker": 3})
    groups = movable_groups(model.graph)
    found = problem_of(model, groups, flops_times, link=LINK, call=CALL)
    chosen = choose(candidates(found.problem))
    one = next(c for c in chosen if [s.replicas for s in c.stages] == [2, 1])
    placement = place_candidate(model, found, one)
    assert placement.nodes == ((0, 1), (2,))
    assert str(placement.places["characters"]) == "/node:worker:0-1/cpu"
    assert str(placement.places["loss"]) == "/node:worker:2/cpu"
    assert compile_in_memory(lower_placed(model, lower_to_tables, placement).model)


def test_a_heter_node_that_runs_nothing_is_left_out() -> None:
    model, found = spec_problem("wide_deep")
    one = next(c for c in candidates(found.problem) if c.devices == 1)
    placement = place_candidate(model, found, one)
    assert placement.counts == {"worker": 1, "heter": 0, "ps": 1}
    assert {str(place) for place in placement.places.values()} == {"/node:worker/cpu"}


def test_fixed_ops_keep_their_places_and_nodes() -> None:
    model = read_model(SPECS / "wide_deep.yaml")
    groups = movable_groups(model.graph, ("deep*",))
    found = problem_of(model, groups, flops_times, link=LINK, call=CALL)
    placement = place_candidate(model, found, candidates(found.problem)[0])
    assert "deep1" not in placement.places
    assert placement.counts["heter"] == 1
    step = lower_placed(model, lower_to_tables, placement).step.graph
    assert {node.kind for node in step.nodes(step.producers["deep1"])} == {"heter"}


def test_gpus_of_a_node_share_a_stage() -> None:
    model = read_model(SPECS / "cnn_gpus.yaml", nodes={"worker": 2})
    groups = movable_groups(model.graph)
    found = problem_of(model, groups, flops_times, link=LINK, call=CALL)
    one = next(c for c in candidates(found.problem) if len(c.stages) == 2)
    placement = place_candidate(model, found, one)
    assert str(placement.places["pixels"]) == "/node:worker:0/gpu"


def test_a_candidate_that_does_not_fit_is_refused_with_the_device() -> None:
    model, found = spec_problem("mlp_pipeline")
    least = min(candidates(found.problem), key=lambda each: each.memory)
    limit = Memory(1_000_000, Span("spec.yaml", 1, 1))
    small = replace(model, memory={("worker", "cpu"): limit})
    lowered, refused = lower_best(small, found, [least], lower_to_tables)
    assert not lowered
    assert refused[0].why.startswith("cpu:0 of worker:0 needs ")
    # The search knows the limit too, and finds nothing.
    groups = movable_groups(small.graph)
    strict = problem_of(small, groups, flops_times, link=LINK, call=CALL)
    assert not candidates(strict.problem)


def test_the_best_of_one_device_and_of_all_are_among_the_chosen() -> None:
    _, found = spec_problem("transformer_pipeline")
    chosen = choose(candidates(found.problem), 3)
    assert len(chosen) == 3
    assert {1, 2} <= {each.devices for each in chosen if len(each.stages) == 1}
