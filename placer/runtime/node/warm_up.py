"""The warm-up: every node runs its program on zeros before the first step.

All nodes compile at the same time, so no step waits for a compilation. The program runs on a
`DryNode`, with the shapes and dtypes of real steps, so JAX reuses the compiled functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placer.plan.plan import Plan
from placer.runtime.node.driver import NodeDriver
from placer.runtime.node.dry_node import DryNode
from placer.runtime.node.node import Node
from placer.runtime.node.program_file import Hook


def run_warm_up(
    plan: Plan, driver: NodeDriver, step: Hook, evaluate: Hook | None = None
) -> None:
    """Run the hooks `step`, `evaluate` and `serve` of a node, and wait for their results.

    `step` and `evaluate` run for each size of a batch and each padded size of sparse rows.

    Args:
        plan: the plan.
        driver: the driver of the node; the node's tables do not change.
        step: the hook `step`.
        evaluate: the hook `evaluate`, None without evaluations.
    """
    node, batches = driver.node, driver.node.batch_calls
    for size in batches.training.sizes:
        for dry in _dry_nodes(plan, node, (size,)):
            step(dry)
    if evaluate is not None and batches.phases[1] is not None:
        assert batches.evaluating is not None
        for dry in _dry_nodes(plan, node, batches.evaluating.sizes, evaluation=True):
            evaluate(dry)
    if driver.serve is not None:
        driver.serve(DryNode.of(node, plan, batches.training.sizes))


def warm_up_prediction(plan: Plan, node: Node, predict: Hook) -> None:
    """Run the hook `predict` of a node on zeros, for each size of a batch."""
    evaluating = node.batch_calls.evaluating
    assert evaluating is not None
    for dry in _dry_nodes(plan, node, evaluating.sizes, evaluation=True):
        predict(dry)


def _dry_nodes(
    plan: Plan, node: Node, sizes: Sequence[int], *, evaluation: bool = False
) -> Iterator[DryNode]:
    """Yield a dry node for each padded size of sparse rows; one without sparse tables."""
    number = 0
    while True:
        dry = DryNode.of(node, plan, sizes, evaluation=evaluation, padded_size=number)
        yield dry
        number += 1
        if dry.row_calls is None or number >= dry.row_calls.keys.most_sizes:
            return
