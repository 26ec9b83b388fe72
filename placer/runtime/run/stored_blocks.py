"""Which blocks each node saves in a checkpoint, and where they are in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placer.build.plan import Plan, Table
from placer.checkpoint.manifest import StoredBlock, StoredParameter
from placer.config import optimizers


def held_blocks(plan: Plan, node: str) -> dict[str, list[int]]:
    """Return the blocks that a node saves, by table: all of its blocks but replicas that
    another node saves."""
    held: dict[str, list[int]] = {}
    for parameter in plan.parameters:
        for holder, table, index in parameter.holders:
            if holder == node:
                held.setdefault(table, []).append(index)
    return {table: sorted(blocks) for table, blocks in held.items()}


def holders(plan: Plan) -> list[str]:
    """Return the nodes that save blocks, in the order of the plan."""
    holding = {holder for each in plan.parameters for holder, _, _ in each.holders}
    return [node.name for node in plan.nodes if node.name in holding]


def file_of(node: str) -> str:
    """Return the name of a node's file, such as `ps-0.safetensors`."""
    return f"{node.replace(':', '-')}.safetensors"


def stored_parameters(
    plan: Plan, updates: Mapping[str, Mapping[str, Sequence[int]]]
) -> dict[str, StoredParameter]:
    """Return how the parameters of a plan are stored in a checkpoint.

    `updates` has the number of updates of each block, by node and table.
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
        rule = tables[node, table].rule
        stored[parameter.name] = StoredParameter(
            dtype=parameter.dtype,
            shape=parameter.shape,
            rule=rule,
            slots=slots_of(tables[node, table]),
            updates=updates[node][table][index],
            blocks=tuple(blocks),
        )
    return stored


def slots_of(table: Table) -> tuple[str, ...]:
    """Return the names of the slots of a table's rule."""
    if table.rule is None:
        return ()
    return tuple(optimizers.slots(table.rule, table.hyper))
