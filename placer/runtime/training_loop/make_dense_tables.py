"""Creates the dense tables of a node, with values from initializers, a file or a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from placer.channel.interface import Array
from placer.place.types import TensorType
from placer.plan.modules import modules_in
from placer.plan.plan import MEMORY, Plan, Table
from placer.runtime.control.execution import Execution
from placer.runtime.exchange.devices import Devices
from placer.runtime.saving.start_parameters import StartParameters
from placer.tables.block_table import BlockTable
from placer.tables.dense import DenseTable
from placer.tables.initial.initial_values import compute_values


def make_tables(
    execution: Execution,
    start: StartParameters | None,
    devices: Devices,
    *,
    are_loaded: bool = False,
) -> dict[str, BlockTable]:
    """Create a node's tables and compile their updates; return them by name.

    Tables that are updated in place are stored in memory of the node's channel.

    Args:
        execution: the node's run.
        start: the values to start from; None for the initializers.
        devices: the devices of the node.
        are_loaded: whether all values are loaded from a checkpoint afterwards. Until then
            they are 0.

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
        if are_loaded:
            initial = (np.zeros(block.numel, dtype) for block in planned.blocks)
        elif start is not None:
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
        if planned.transformation:
            table = _make_optax_table(execution, planned, dtype, shaped, devices)
        elif planned.devices == MEMORY:
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


def _make_optax_table(
    execution: Execution,
    planned: Table,
    dtype: str,
    initial: Iterable[Array],
    devices: Devices,
) -> BlockTable:
    """Create a table with an optax optimizer; its functions are in files of the build."""
    import jax

    from placer.ops.transformations.config import with_config
    from placer.ops.transformations.functions import block_functions
    from placer.tables.optax_table import OptaxTable

    plan = execution.plan
    described = plan.transformations[planned.transformation]
    types = {each.name: TensorType(each.dtype, each.shape) for each in plan.parameters}
    wide = plan.settings.precision == "float64"
    with modules_in(execution.folder):
        functions = block_functions(
            with_config(_load_function(described.fn), described.config),
            {name: types[name] for name in described.parameters},
            planned.blocks,
            described,
            averaged=_load_function(described.eval_params)
            if described.eval_params
            else None,
            wide=wide,
        )
    if planned.devices == MEMORY:
        put = partial(jax.device_put, device=devices.sets[MEMORY][0])
    else:
        put = partial(devices.copy_to_devices, to=planned.devices)
    return OptaxTable(planned, dtype, initial, put, described, functions, wide=wide)


def _load_function(text: str) -> Callable[..., Any]:
    module, _, name = text.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


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
