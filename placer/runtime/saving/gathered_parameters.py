"""Gathers the parameters of a run: the control node joins the blocks of all nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from placer.channel.interface import Channel, Key
from placer.plan.plan import Plan
from placer.runtime.control.barrier import SAVE
from placer.tables.protocol import ProgramTable

CHUNK: Final = 64 << 20
"""The largest number of elements in one message. A block may need several messages."""


def gather_parameters(
    plan: Plan, channel: Channel, tables: Mapping[str, ProgramTable]
) -> dict[str, np.ndarray]:
    """Send this node's blocks to the control node: the values for evaluations.

    Raises RunError if a node is lost or the deadline passes.

    Returns:
        On the control node, the whole parameters by name. On other nodes, {}.
    """
    is_control = channel.node == plan.control
    sizes = {
        (node.name, table.name, i): block.stop - block.start
        for node in plan.nodes
        for table in node.tables
        for i, block in enumerate(table.blocks)
    }
    whole: dict[str, np.ndarray] = {}
    values: dict[str, tuple[Any, ...]] = {}
    for i, parameter in enumerate(plan.parameters):
        parts = []
        for j, location in enumerate(parameter.holders):
            holder, table, index = location
            key = Key(SAVE, i, j)
            if holder == channel.node:
                if table not in values:
                    values[table] = tables[table].evaluation_values()
                flat = np.asarray(values[table][index]).reshape(-1)
                if not is_control:
                    for chunk in chunks(sizes[location]):
                        channel.send(plan.control, key, [flat[chunk]])
                parts.append(flat)
            elif is_control:
                for _ in chunks(sizes[location]):
                    parts += channel.receive(holder, key)
        if is_control:
            whole[parameter.name] = np.concatenate(parts).reshape(parameter.shape)
    return whole


def chunks(size: int) -> list[slice]:
    """Return the range of elements of each message; an empty block needs one message."""
    return [slice(low, low + CHUNK) for low in range(0, max(1, size), CHUNK)]
