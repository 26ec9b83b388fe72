"""Creates the dense tables of a node, with values from initializers, a file or a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from placer.channel.interface import Array
from placer.plan.plan import MEMORY, Plan, Table
from placer.runtime.control.execution import Execution
from placer.runtime.exchange.devices import Devices
from placer.runtime.saving.start_parameters import StartParameters
from placer.tables.block_table import BlockTable
from placer.tables.dense import DenseTable
from placer.tables.initial.initial_values import compute_values


def make_tables(
    execution: Execution, start: StartParameters | None, devices: Devices
) -> dict[str, BlockTable]:
    """Create a node's tables and compile their updates; return them by name.

    Tables that are updated in place are stored in memory of the node's channel.

    Args:
        execution: the node's run.
        start: the values to start from; None for the initializers.
        devices: the devices of the node.

    Raises:
        DataError: if a file cannot be read.
        CheckpointError: for a damaged checkpoint.
    """
    plan, me, build = execution.plan, execution.me, execution.folder
    parameters = {parameter.name: parameter for parameter in plan.parameters}
    tables: dict[str, BlockTable] = {}
    for planned in me.tables:
        dtype = parameters[planned.blocks[0].parameter].dtype
        initial: Iterable[Array]
        if start is not None:
            initial = start.read(planned.blocks)
        else:
            initial = (
                compute_values(
                    parameters[block.parameter], block, plan.settings.seed, build
                )
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
    """Return the numbers of sources from which an update's gradients may arrive. It is
    1 if the gradients are joined before the update."""
    gradients = {block.gradient for block in planned.blocks}
    in_rounds = planned.mode is not None and planned.mode.in_rounds
    return {1} | {
        len(edge.sources)
        for edge in plan.step_edges
        if gradients
        & {v.result for v in edge.values if v.layouts[0] == "P" or in_rounds}
    }
