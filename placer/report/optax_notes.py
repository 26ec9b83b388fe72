"""Notes about the optax optimizers of a build."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from placer.plan.plan import Plan, Table
from placer.plan.settings.training.transformations import Transformation
from placer.system.listed import list_names

MAX_NAMED = 8


def optax_lines(plan: Plan, limit: int | None = MAX_NAMED) -> Iterator[str]:
    """Yield the parameters that optax optimizers do not divide over the nodes, and the
    counts in their state that depend on asynchronous workers."""
    for number, transformation in plan.transformations.items():
        tables = [
            table
            for node in plan.nodes
            for table in node.tables
            if table.transformation == number
        ]
        whole = {
            *transformation.whole,
            *(n for g in transformation.together for n in g),
        }
        kept = [name for name in transformation.parameters if name in whole]
        if kept and _is_divided(plan, transformation, tables):
            yield f"not cut for {transformation.fn}: {list_names(kept, limit)}"
        counts = [
            leaf.name
            for leaf in transformation.leaves
            if not leaf.shape and leaf.dtype.startswith(("int", "uint"))
        ]
        if counts and any(table.mode or table.local for table in tables):
            listed = list_names([*dict.fromkeys(counts)], limit)
            yield (
                f"workers are asynchronous, so counts in the state of {transformation.fn}"
                f" are the updates of one parameter on one node: {listed}"
            )


def _is_divided(
    plan: Plan, transformation: Transformation, tables: list[Table]
) -> bool:
    """Whether nodes hold different parameters of an optimizer, or parts of them."""
    sizes = {each.name: prod(each.shape) for each in plan.parameters}
    everything = {name: sizes[name] for name in transformation.parameters}
    return any(
        {block.parameter: block.numel for block in table.blocks} != everything
        for table in tables
    )
