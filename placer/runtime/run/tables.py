"""Create the tables of a node, with initial values or those of a parameter file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from placer.build.plan import MEMORY, NodePlan, Plan
from placer.build.plan import Table as TablePlan
from placer.config.initializers import file_of
from placer.runtime.program.devices import Devices
from placer.runtime.run import parameter_files as files
from placer.tables.block import ParameterBlock
from placer.tables.buffers import Allocate
from placer.tables.dense import DenseTable
from placer.tables.protocol import Table


def make_tables(
    plan: Plan,
    me: NodePlan,
    build: Path,
    init_params: Path | None,
    allocate: Allocate,
    devices: Devices,
) -> dict[str, Table]:
    """Create a node's tables and compile their updates.

    Args:
        plan: the plan.
        me: the node in the plan.
        build: the build folder, which has the files that initializers name.
        init_params: a file of whole parameters to start from, if any.
        allocate: returns memory for the values of tables that are updated in place.
        devices: the devices of the node.

    Returns:
        The tables by name.

    Raises:
        DataError: for a file that cannot be read or does not fit the model.
    """
    parameters = {parameter.name: parameter for parameter in plan.parameters}
    values = None
    if init_params is not None and me.tables:
        values = files.load(init_params)
        files.check(values, {p.name: (p.shape, p.dtype) for p in plan.parameters})
    tables: dict[str, Table] = {}
    for table_plan in me.tables:
        blocks = [
            ParameterBlock(**asdict(b), parameter_shape=parameters[b.parameter].shape)
            for b in table_plan.blocks
        ]
        identity = table_plan.name, blocks, table_plan.rule or "sgd", table_plan.hyper
        initial: dict[str, Any] = {
            "dtype": parameters[blocks[0].parameter].dtype,
            "seed": plan.seed,
            "initializers": {
                b.parameter: _resolve_file(parameters[b.parameter].init, build)
                for b in blocks
            },
        }
        table: Table
        if table_plan.devices == MEMORY:
            table = DenseTable(
                *identity, **initial, allocate=allocate, in_place=table_plan.in_place
            )
        else:
            from placer.tables.device import DeviceTable

            table = DeviceTable(
                *identity,
                **initial,
                put=partial(devices.copy_to_devices, to=table_plan.devices),
            )
        if values is not None:
            table.load(
                [
                    values[b.parameter].reshape(-1)[b.start : b.stop].reshape(b.shape)
                    for b in blocks
                ]
            )
        if table_plan.rule is not None:
            for sources in _source_counts(plan, table_plan):
                table.warm_up(sources)
        tables[table_plan.name] = table
    return tables


def _resolve_file(init: Any, build: Path) -> Any:
    """Return the initializer, with the path of its file in the build if it has one."""
    file = file_of(init)
    return init if file is None else {"file": str(build / file)}


def _source_counts(plan: Plan, table_plan: TablePlan) -> set[int]:
    """Return from how many sources an update's gradients may arrive: 1 if they are
    joined before."""
    gradients = {block.gradient for block in table_plan.blocks}
    return {1} | {
        len(edge.sources)
        for edge in plan.step_edges
        if gradients & {value.result for value in edge.values}
    }
