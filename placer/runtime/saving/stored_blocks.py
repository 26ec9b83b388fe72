"""Maps the blocks of all nodes to the files of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from placer.checkpoint.manifest import (
    StoredBlock,
    StoredLocal,
    StoredOuter,
    StoredParameter,
)
from placer.place.node_kinds import NodeId
from placer.plan.plan import Parameter, Plan, Table
from placer.runtime.saving.optimizer_state import (
    planned_state,
    slots_of,
)


def held_blocks(plan: Plan, node: str) -> dict[str, list[int]]:
    """Return the indices of the blocks that a node saves, by table.

    Of several replicas of a block, only one node saves the block.
    """
    held: dict[str, list[int]] = {}
    for parameter in plan.parameters:
        for holder, table, index in parameter.holders:
            if holder == node:
                held.setdefault(table, []).append(index)
    for each in plan.node(node).tables:
        if each.local:
            held[each.name] = [*range(len(each.blocks))]
    return {table: sorted(blocks) for table, blocks in held.items()}


def holders(plan: Plan) -> list[str]:
    """Return the nodes that save blocks, in the order of the plan."""
    return [node.name for node in plan.nodes if held_blocks(plan, node.name)]


def file_of(node: str) -> str:
    """Return the name of a node's file of dense blocks, such as `ps-0.safetensors`."""
    return f"{NodeId(node).stem}.safetensors"


def stored_parameters(
    plan: Plan, updates: Mapping[str, Mapping[str, Sequence[int]]]
) -> dict[str, StoredParameter]:
    """Return the manifest entries of a plan's parameters.

    `updates` contains the number of updates of each block, by node and table.
    """
    stored = {}
    tables = {
        (node.name, table.name): table for node in plan.nodes for table in node.tables
    }
    for parameter in plan.parameters:
        blocks = []
        for node, table, index in parameter.holders:
            block = tables[node, table].blocks[index]
            blocks.append(
                StoredBlock(file_of(node), block.name, block.start, block.stop)
            )
        node, table, index = parameter.holders[0]
        count, outer = updates[node][table][index], None
        local = {
            worker: StoredLocal(
                file_of(worker), own.blocks[i].name, updates[worker][own.name][i]
            )
            for worker, own, i in _local_blocks(plan, parameter)
        }
        if local:
            holding = tables[node, table]
            assert holding.rule is not None
            outer = StoredOuter(holding.rule, slots_of(holding), count)
            count = next(iter(local.values())).updates
        training = training_table(plan, parameter)
        state = planned_state(plan, training, parameter)
        stored[parameter.name] = StoredParameter(
            dtype=parameter.dtype,
            shape=parameter.shape,
            rule=state.rule,
            slots=tuple(state.slots),
            updates=count,
            blocks=tuple(blocks),
            local=local,
            outer=outer,
            slot_dtypes={
                slot: dtype
                for slot, dtype in state.slots.items()
                if dtype != parameter.dtype
            },
            leaves=dict(state.leaves),
            averaged=training.averages,
            fn=state.fn,
        )
    return stored


def holding_table(plan: Plan, parameter: Parameter) -> Table:
    """Return the table that holds the first block of a parameter."""
    node, name, _ = parameter.holders[0]
    return next(table for table in plan.node(node).tables if table.name == name)


def training_table(plan: Plan, parameter: Parameter) -> Table:
    """Return the table whose optimizer trains a parameter.

    If workers have local values, this is the table of the first worker.
    """
    for _, table, _ in _local_blocks(plan, parameter):
        return table
    return holding_table(plan, parameter)


def _local_blocks(plan: Plan, parameter: Parameter) -> Iterator[tuple[str, Table, int]]:
    for node in plan.nodes:
        for table in node.tables:
            if table.local:
                for i, block in enumerate(table.blocks):
                    if block.parameter == parameter.name:
                        yield node.name, table, i
