"""Create the tables of a node, with initial values or those of a parameter file."""

from __future__ import annotations

from functools import partial

import numpy as np

from placer.build.plan import MEMORY, Plan, Table
from placer.runtime.program.devices import Devices
from placer.runtime.run import parameter_files as files
from placer.runtime.run.state import Execution
from placer.tables.block_table import BlockTable
from placer.tables.dense import DenseTable
from placer.tables.initial.initial_values import compute_values


def make_tables(execution: Execution, devices: Devices) -> dict[str, BlockTable]:
    """Create a node's tables and compile their updates; return them by name.

    They start from the parameters of the file of `--init-params`, if any. Tables that
    are updated in place are in memory from the node's channel.

    Raises:
        DataError: for a file that cannot be read or does not fit the model.
    """
    plan, me, build = execution.plan, execution.me, execution.folder
    init_params = execution.options.init_params
    parameters = {parameter.name: parameter for parameter in plan.parameters}
    values = None
    if init_params is not None and me.tables:
        values = files.load(init_params)
        files.check(values, {p.name: (p.shape, p.dtype) for p in plan.parameters})
    tables: dict[str, BlockTable] = {}
    for planned in me.tables:
        dtype = parameters[planned.blocks[0].parameter].dtype
        initial = (
            compute_values(parameters[block.parameter], block, plan.seed, build)
            if values is None
            else values[block.parameter].reshape(-1)[block.start : block.stop]
            for block in planned.blocks
        )
        shaped = map(np.reshape, initial, (block.shape for block in planned.blocks))
        table: BlockTable
        if planned.devices == MEMORY:
            table = DenseTable(planned, dtype, shaped, execution.channel.share)
        else:
            from placer.tables.device import DeviceTable

            put = partial(devices.copy_to_devices, to=planned.devices)
            table = DeviceTable(planned, dtype, shaped, put)
        if planned.rule is not None:
            for sources in _source_counts(plan, planned):
                table.warm_up(sources)
        tables[planned.name] = table
    return tables


def _source_counts(plan: Plan, planned: Table) -> set[int]:
    """Return from how many sources an update's gradients may arrive: 1 if they are
    joined before."""
    gradients = {block.gradient for block in planned.blocks}
    return {1} | {
        len(edge.sources)
        for edge in plan.step_edges
        if gradients & {value.result for value in edge.values}
    }
