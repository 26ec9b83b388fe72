"""What the processes of a plan need of the machines they run on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from placer.launcher.engines.engine import Needs
from placer.plan.plan import NodePlan, Plan
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.sources import Source
from placer.plan.settings.data.window import Window
from placer.plan.settings.sparse.row_bytes import table_bytes

BASE_BYTES: Final = 512 << 20
"""What a process takes besides tables, activations and rows: the interpreter, JAX and its
compiler, and buffers of messages."""
_UNIT: Final = 64 << 20
_IN_WINDOW: Final = 256 << 20
"""What a process takes for rows that are read through a window."""
_IN_MEMORY: Final = 2
"""How many times the size of its file a set of rows takes while it is read."""


def needs_of(plan: Plan, data: Path, *, emulate: bool = False) -> dict[str, Needs]:
    """Return what each process of a plan needs, by its name.

    The memory is what the spec gives the nodes, or else the sum of the tables and the
    activations, 512 MiB, and the rows if the process reads any: those of its sources that
    are files in `data`, or at absolute paths of this machine. Sparse tables count with
    the rows that the spec expects. Emulated GPUs are not needed.
    """
    return {
        name: Needs(
            _rounded(_memory(plan, nodes, data)), 0 if emulate else _gpus(nodes)
        )
        for name, nodes in plan.processes.items()
    }


def _rounded(nbytes: int) -> int:
    """Round up, so that nodes that differ by a few bytes are equal."""
    return -(-nbytes // _UNIT) * _UNIT


def _gpus(nodes: Sequence[NodePlan]) -> int:
    return max(node.devices.get("gpu", 0) for node in nodes)


def _memory(plan: Plan, nodes: Sequence[NodePlan], data: Path) -> int:
    given = nodes[0].memory
    if given is not None:
        return given
    total = BASE_BYTES + sum(n.table_bytes + n.activation_bytes for n in nodes)
    total += sum(_sparse(plan, node.name) for node in nodes)
    sources = [
        (plan.train, any(node.step.reads for node in nodes)),
        (plan.evaluation, any(n.evaluation and n.evaluation.reads for n in nodes)),
    ]
    return total + sum(
        _rows(source, data) for source, reads in sources if source and reads
    )


def _sparse(plan: Plan, node: str) -> int:
    """Return the bytes of a node's parts of sparse tables, as far as the spec says how
    many rows they have."""
    total = 0
    for table in plan.sparse_tables:
        rows = table.settings.capacity if table.rows is None else table.rows
        if node in table.holders and rows is not None:
            held = len(table.partitions_of(node))
            total += table_bytes(table.settings, table.dtype, rows, held)
    return total


def _rows(source: RowSource, data: Path) -> int:
    """Return the bytes that the rows of a source take in memory."""
    if isinstance(source.shuffle, Window):
        return _IN_WINDOW
    parsed: Source = source.parsed
    if not parsed.declaration.is_file:
        return 0
    file = data / parsed.path
    return _IN_MEMORY * file.stat().st_size if file.is_file() else 0
