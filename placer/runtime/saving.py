"""Saving the parameters of a run: blocks of all nodes become whole parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from placer.plan import Plan
from placer.runtime import parameters as files
from placer.runtime.channel.protocol import Channel, Key
from placer.runtime.service import SAVE
from placer.runtime.table import Table


def save(plan: Plan, channel: Channel, tables: Mapping[str, Table], path: Path) -> None:
    """Every node sends its blocks; the control node writes the file."""
    control = channel.node == plan.control
    whole: dict[str, np.ndarray] = {}
    for i, parameter in enumerate(plan.parameters):
        blocks = []
        for j, (holder, table, index) in enumerate(parameter.holders):
            key = Key(SAVE, i, j)
            if holder == channel.node:
                block = tables[table].values()[index]
                if not control:
                    channel.send(plan.control, key, [block])
                blocks.append(block)
            elif control:
                blocks += channel.receive(holder, key)
        if control:
            flat = np.concatenate([block.reshape(-1) for block in blocks])
            whole[parameter.name] = flat.reshape(parameter.shape)
    if control:
        files.save(path, whole)
