"""Gathering the parameters of a run: blocks of all nodes become whole parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from placer.build.plan import Plan
from placer.channel.protocol import Channel, Key
from placer.runtime.run.barrier import SAVE
from placer.runtime.run.tables import AnyTable

PART: Final = 64 << 20
"""Elements of a block that go in one message: a block may have more bytes than a message
may carry."""


def gather(
    plan: Plan, channel: Channel, tables: Mapping[str, AnyTable]
) -> dict[str, np.ndarray]:
    """Every node sends its blocks to the control node, which returns the whole
    parameters by name; the others return none."""
    control = channel.node == plan.control
    sizes = {
        (node.name, table.name, i): block.stop - block.start
        for node in plan.nodes
        for table in node.tables
        for i, block in enumerate(table.blocks)
    }
    whole: dict[str, np.ndarray] = {}
    for i, parameter in enumerate(plan.parameters):
        found = []
        for j, held in enumerate(parameter.holders):
            holder, table, index = held
            key = Key(SAVE, i, j)
            if holder == channel.node:
                flat = np.asarray(tables[table].values()[index]).reshape(-1)
                if not control:
                    for part in _parts(sizes[held]):
                        channel.send(plan.control, key, [flat[part]])
                found.append(flat)
            elif control:
                for _ in _parts(sizes[held]):
                    found += channel.receive(holder, key)
        if control:
            whole[parameter.name] = np.concatenate(found).reshape(parameter.shape)
    return whole


def _parts(size: int) -> list[slice]:
    """The ranges of elements that go one by one, at least one."""
    return [slice(low, low + PART) for low in range(0, max(1, size), PART)]
