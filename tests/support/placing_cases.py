"""Times of groups for tests of places: declared FLOPs, and fixed costs of a slow machine."""

from __future__ import annotations

from collections.abc import Sequence

from placer.compiler.frontend.python.read import read_model
from placer.compiler.graph.flops import FlopsCache, op_flops
from placer.compiler.graph.graph import Op
from placer.compiler.graph.model import Model
from placer.compiler.placing.from_model import ModelProblem, Times, Work, problem_of
from placer.compiler.placing.groups import movable_groups
from placer.compiler.placing.problem import Link
from support.plain.specs import SPECS

CALL = 300_000
LINK = Link(per_message=200_000, per_megabyte=1_400_000)


def flops_times(work: Work, device: str) -> Times:
    """Return 30 ns for each 1,000 FLOPs, and 10 µs for each op."""
    cache = FlopsCache()

    def total(ops: Sequence[Op]) -> int:
        counted = [op for op in ops if op.kind != "accumulate"]
        flops = sum(op_flops(work.graph, op, work.rows, cache) for op in counted)
        return flops * 3 // 100 + 10_000 * len(counted)

    return Times(total(work.forward), total(work.backward), 100_000 * len(work.updates))


def spec_problem(name: str) -> tuple[Model, ModelProblem]:
    """Return the model of a spec of `specs/`, and its problem."""
    model = read_model(SPECS / f"{name}.yaml")
    groups = movable_groups(model.graph)
    return model, problem_of(model, groups, flops_times, link=LINK, call=CALL)
