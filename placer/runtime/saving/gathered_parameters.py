"""Gather the parameters of a run: join the blocks of all nodes on the control node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from placer.channel.interface import Channel, Key
from placer.plan.plan import Plan
from placer.runtime.control.barrier import SAVE
from placer.tables.protocol import ProgramTable

CHUNK: Final = 64 << 20
"""The most elements of a block in one message, since a block may be larger than the
largest message."""


def gather_parameters(
    plan: Plan, channel: Channel, tables: Mapping[str, ProgramTable]
) -> dict[str, np.ndarray]:
    """Send this node's blocks to the control node.

    The control node returns the whole parameters by name, the other nodes return {}.
    Raises RunError for a lost peer and for a passed deadline.
    """
    is_control = channel.node == plan.control
    sizes = {
        (node.name, table.name, i): block.stop - block.start
        for node in plan.nodes
        for table in node.tables
        for i, block in enumerate(table.blocks)
    }
    whole: dict[str, np.ndarray] = {}
    for i, parameter in enumerate(plan.parameters):
        parts = []
        for j, location in enumerate(parameter.holders):
            holder, table, index = location
            key = Key(SAVE, i, j)
            if holder == channel.node:
                flat = np.asarray(tables[table].values()[index]).reshape(-1)
                if not is_control:
                    for chunk in _chunks(sizes[location]):
                        channel.send(plan.control, key, [flat[chunk]])
                parts.append(flat)
            elif is_control:
                for _ in _chunks(sizes[location]):
                    parts += channel.receive(holder, key)
        if is_control:
            whole[parameter.name] = np.concatenate(parts).reshape(parameter.shape)
    return whole


def _chunks(size: int) -> list[slice]:
    """Return the ranges of elements of each message; an empty block has one message."""
    return [slice(low, low + CHUNK) for low in range(0, max(1, size), CHUNK)]
