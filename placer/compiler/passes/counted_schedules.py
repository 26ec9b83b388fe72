"""Finds schedules of optax optimizers that count the updates of all workers."""

from __future__ import annotations

from collections import Counter

from placer.compiler.graph.graph import Graph, Op
from placer.errors import PlacerError
from placer.plan.settings.training.transformations import Transformation
from placer.plan.settings.training.update_modes import name_of


def find_counted_schedules(step: Graph) -> list[str]:
    """Return a warning for each optax schedule that advances with the push of each worker.

    A server updates once for each push, and the counts in the state of an optax optimizer
    are its updates. A function with `learning_rate` has its schedule in the spec, which
    counts steps.

    Args:
        step: the graph of a training step, after the passes.

    Returns:
        The warnings with position and hint, in the order of the optimizers.
    """
    workers = step.cluster.workers
    pushed = {op.attrs["group"] for op in step if op.attrs.get("exchange") == "push"}
    texts = []
    for group, op in step.optimizers.items():
        transformation: Transformation | None = op.attrs.get("transformation")
        if transformation is None or transformation.takes_rate:
            continue
        if workers > 1 and group in pushed and (count := _count(transformation)):
            texts.append(_warn(op, count, workers))
    return texts


def _count(transformation: Transformation) -> str:
    """Return the name of a schedule's count in the state; empty without one.

    `optax.scale_by_schedule` keeps its count alone in a tuple. The count of a bias
    correction, such as Adam's, is next to the slots that it corrects.
    """
    neighbors = Counter(_parent(leaf.name) for leaf in transformation.leaves)
    for leaf in transformation.leaves:
        is_scalar = (leaf.kind, leaf.shape) == ("shared", ())
        is_whole = leaf.dtype.startswith(("int", "uint"))
        if is_scalar and is_whole and neighbors[_parent(leaf.name)] == 1:
            return leaf.name
    return ""


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _warn(op: Op, count: str, workers: int) -> str:
    mode = name_of(op.attrs["update"])
    message = (
        f"the schedule of {op.attrs['fn']} advances {workers} times as fast as the steps:"
        f" with 'update: {mode}' each of the {workers} workers adds 1 to '{count}' of its"
        " state in every step"
    )
    hint = (
        "take learning_rate in the function, and write the schedule in the spec:"
        " learning_rate: {cosine: {init: 0.01, steps: 100}}"
    )
    return str(PlacerError(message, span=op.source, hint=hint))
