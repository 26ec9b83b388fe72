"""The tables of a node as its plan says, with their initial values or a file's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from placer.build.plan import MEMORY, Node, Plan
from placer.build.plan import Table as TablePlan
from placer.config.initializers import file_of
from placer.runtime.program.devices import Devices
from placer.runtime.run import parameter_files as files
from placer.tables.block import Block
from placer.tables.buffers import Allocate
from placer.tables.dense import Table

if TYPE_CHECKING:
    from placer.tables.device import DeviceTable

AnyTable: TypeAlias = "Table | DeviceTable"
"""A table in a node's memory, or on its devices."""


def make_tables(
    plan: Plan,
    me: Node,
    build: Path,
    given: Path | None,
    allocate: Allocate,
    devices: Devices,
) -> dict[str, AnyTable]:
    """A node's tables by name, ready to be updated.

    Those that change in place have their values in `allocate`'s memory; those on devices
    are JAX's arrays. `given` is a file of whole parameters to begin with, and the folder
    `build` holds those that parameters name; DataError where one does not fit.
    """
    wholes = {parameter.name: parameter for parameter in plan.parameters}
    values = None
    if given is not None and me.tables:
        values = files.load(given)
        files.check(values, {p.name: (p.shape, p.dtype) for p in plan.parameters})
    tables: dict[str, AnyTable] = {}
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
        of = held.name, blocks, held.rule or "sgd", held.hyper
        begin: dict[str, Any] = {
            "dtype": wholes[blocks[0].parameter].dtype,
            "seed": plan.seed,
            "inits": {
                b.parameter: _found(wholes[b.parameter].init, build) for b in blocks
            },
        }
        table: AnyTable
        if held.devices == MEMORY:
            table = Table(*of, **begin, allocate=allocate, in_place=held.in_place)
        else:
            from placer.tables.device import DeviceTable

            table = DeviceTable(*of, **begin, put=partial(devices.put, to=held.devices))
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


def _found(init: Any, build: Path) -> Any:
    """The initialiser, with the path of its file where it has one."""
    file = file_of(init)
    return init if file is None else {"file": str(build / file)}


def _sources(plan: Plan, held: TablePlan) -> set[int]:
    """From how many workers gradients come at once: 1 where they are put together."""
    takes = {block.gradient for block in held.blocks}
    return {1} | {
        len(edge.sources)
        for edge in plan.step_edges
        if takes & {moved.result for moved in edge.values}
    }
