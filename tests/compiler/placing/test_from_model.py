"""The problem of a model: times, bytes and flows of its groups."""

from __future__ import annotations

from support.placing_cases import LINK, spec_problem
from support.plain.specs import SPECS

from placer.compiler.frontend.python.read import read_model
from placer.compiler.placing.from_model import Times, Work, problem_of
from placer.compiler.placing.groups import movable_groups
from placer.compiler.placing.problem import Flow

FLOAT = 4


def test_values_flow_forward_and_gradients_back() -> None:
    _, found = spec_problem("mlp_pipeline")
    problem = found.problem
    names = [group.name for group in problem.groups]
    h1, h2 = names.index("h1"), names.index("h2")
    rows, size = 16, 256
    assert Flow(h1, (h2,), rows * size * FLOAT) in problem.flows
    assert Flow(h2, (h1,), rows * size * FLOAT) in problem.flows
    assert (h1, h2) in problem.edges
    assert (h2, h1) not in problem.edges


def test_parameters_of_a_stage_are_stored_with_slots_and_gradients() -> None:
    _, found = spec_problem("mlp_pipeline")
    (group,) = (each for each in found.problem.groups if each.name == "h2")
    parameters = (256 * 256 + 256) * FLOAT
    assert group.parameters == parameters
    assert group.stored == (1 + 2 + 1) * parameters  # adam has two slots
    assert group.once == 2 * 100_000


def test_parameters_at_servers_are_not_exchanged_between_replicas() -> None:
    _, found = spec_problem("digits_cnn")
    assert {group.parameters for group in found.problem.groups} == {0}
    assert any(group.once for group in found.problem.groups)


def test_an_op_that_only_reshapes_joins_its_producer() -> None:
    _, found = spec_problem("digits_cnn")
    assert ("pixels", "picture") in found.ops


def test_ops_outside_of_a_step_take_no_time() -> None:
    model = read_model(SPECS / "mlp_pipeline.yaml")
    works: dict[str, Work] = {}

    def times(work: Work, device: str) -> Times:
        assert device == "cpu"
        works[work.group] = work
        return Times(0)

    groups = movable_groups(model.graph)
    problem_of(model, groups, times, link=LINK)
    assert not works["probability"].forward
    assert [op.name for op in works["h2"].forward] == ["h2"]
    assert [op.kind for op in works["h2"].backward] == ["fc.grad"]
    assert [op.operands[0] for op in works["h2"].updates] == ["h2.w", "h2.b"]


def test_replicas_divide_the_rows_of_a_microbatch() -> None:
    _, found = spec_problem("transformer_pipeline")
    assert found.problem.replicas == (1, 2)
    assert found.problem.microbatches == 8
