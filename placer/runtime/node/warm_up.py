"""The warm-up: every node runs its program on zeros before the first step.

So all nodes compile at the same time, and none during a step that others wait for. The
program runs on a `DryNode`: what XLA compiles is what the steps run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placer.plan.plan import Plan
from placer.runtime.node.dry_node import DryNode
from placer.runtime.node.node import Node
from placer.runtime.node.program_file import Hook


def run_warm_up(
    plan: Plan, node: Node, step: Hook, evaluate: Hook | None = None
) -> None:
    """Run a node's `step`, `evaluate` and `serve` until everything that they compute is there,
    with batches of every number of rows that they may have."""
    for size in node.training.sizes:
        for dry in _dry_nodes(plan, node, (size,)):
            step(dry)
    if evaluate is not None and node.phases[1] is not None:
        assert node.evaluating is not None
        for dry in _dry_nodes(plan, node, node.evaluating.sizes, evaluation=True):
            evaluate(dry)
    if node.serve is not None:
        node.serve(DryNode.of(node, plan, node.training.sizes))


def warm_up_prediction(plan: Plan, node: Node, predict: Hook) -> None:
    """Run a node's `predict` as `run_warm_up` runs the other hooks."""
    assert node.evaluating is not None
    for dry in _dry_nodes(plan, node, node.evaluating.sizes, evaluation=True):
        predict(dry)


def _dry_nodes(
    plan: Plan, node: Node, sizes: Sequence[int], *, evaluation: bool = False
) -> Iterator[DryNode]:
    """Return a dry node for each size that the rows of sparse tables may have: one for a
    plan without any, or whose batches are so small that there is one size."""
    number = 0
    while True:
        dry = DryNode.of(node, plan, sizes, evaluation=evaluation)
        dry.forced_size = number
        yield dry
        number += 1
        if number >= dry.most_sizes:
            return
