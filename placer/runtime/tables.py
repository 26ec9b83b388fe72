"""The tables of a node as its plan says, with their initial values or a file's."""

from __future__ import annotations

from pathlib import Path

from placer.plan import Node, Plan
from placer.plan import Table as TablePlan
from placer.runtime import parameters as files
from placer.runtime.table import Table
from placer.runtime.table_block import Block
from placer.runtime.table_memory import Allocate


def make_tables(
    plan: Plan, me: Node, given: Path | None, allocate: Allocate
) -> dict[str, Table]:
    """A node's tables by name, ready to be updated.

    Those that change in place have their values in `allocate`'s memory. `given` is a
    file of whole parameters to begin with; DataError where it does not fit.
    """
    wholes = {parameter.name: parameter for parameter in plan.parameters}
    values = None
    if given is not None and me.tables:
        values = files.load(given)
        files.check(values, {p.name: (p.shape, p.dtype) for p in plan.parameters})
    tables: dict[str, Table] = {}
    for held in me.tables:
        blocks = [
            Block(
                b.parameter,
                b.name,
                b.shape,
                b.start,
                b.stop,
                wholes[b.parameter].shape,
                b.gradient,
                b.decays,
            )
            for b in held.blocks
        ]
        table = Table(
            held.name,
            blocks,
            held.rule or "sgd",
            held.hyper,
            dtype=wholes[blocks[0].parameter].dtype,
            seed=plan.seed,
            inits={b.parameter: wholes[b.parameter].init for b in blocks},
            allocate=allocate,
            in_place=held.in_place,
        )
        if values is not None:
            table.load(
                [
                    values[b.parameter].reshape(-1)[b.start : b.stop].reshape(b.shape)
                    for b in blocks
                ]
            )
        if held.rule is not None:
            for sources in _sources(plan, held):
                table.warm(sources)
        tables[held.name] = table
    return tables


def _sources(plan: Plan, held: TablePlan) -> set[int]:
    """From how many workers gradients come at once: 1 where they are put together."""
    takes = {block.gradient for block in held.blocks}
    return {1} | {
        len(edge.sources)
        for edge in plan.step_edges
        if takes & {moved.result for moved in edge.values}
    }
