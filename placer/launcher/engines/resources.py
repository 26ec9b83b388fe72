"""Computes the memory and the GPUs that the processes of a plan need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from placer.launcher.engines.engine import Needs
from placer.plan.plan import NodePlan, Plan
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.sources import Source
from placer.plan.settings.data.stream import Stream
from placer.plan.settings.data.window import Window
from placer.plan.settings.sparse.row_bytes import table_bytes
from placer.system.files.globs import matching_files

BASE_BYTES: Final = 512 << 20
"""Bytes for the interpreter, JAX with its compiler, and buffers of messages."""
_UNIT: Final = 64 << 20
_IN_WINDOW: Final = 256 << 20
"""Bytes for rows that are read through a window."""
_IN_MEMORY: Final = 2
"""Memory for the rows of a file while they are read, as a multiple of the file's size."""


def needs_of(plan: Plan, data: Path, *, emulate: bool = False) -> dict[str, Needs]:
    """Return the resources that each process of a plan needs, by its name.

    The memory is the limit that the spec sets for the nodes. Without a limit, it is the
    sum of the tables, the activations, 512 MiB, and the rows if the process reads any.
    Only sources that are local files count for the rows; of a stream, two passes of the
    largest files so far. Sparse tables count with the number of rows that the spec expects.

    Args:
        plan: the plan.
        data: the data folder, for relative paths.
        emulate: True if CPU devices replace the GPUs.
    """
    return {
        name: Needs(
            _rounded(_memory(plan, nodes, data)), 0 if emulate else _gpus(nodes)
        )
        for name, nodes in plan.processes.items()
    }


def _rounded(nbytes: int) -> int:
    """Round up, so that nodes that differ by a few bytes get the same value."""
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
    """Return the bytes of a node's partitions of sparse tables, if the spec sets their
    rows."""
    total = 0
    for table in plan.sparse_tables:
        rows = table.settings.capacity if table.rows is None else table.rows
        if node in table.holders and rows is not None:
            held = len(table.partitions_of(node))
            total += table_bytes(table.settings, table.dtype, rows, held)
    return total


def _rows(source: RowSource, data: Path) -> int:
    passes = 1 if source.stream is None else 2  # the next pass is read ahead
    if isinstance(source.shuffle, Window):
        return passes * _IN_WINDOW
    if source.stream is not None and source.stream.lanes is None:
        return passes * _IN_MEMORY * _largest_pass(source, source.stream, data)
    parsed: Source = source.parsed
    if not parsed.declaration.is_file:
        return 0
    file = data / parsed.path
    if file.is_file():
        return _IN_MEMORY * file.stat().st_size
    found = matching_files(parsed.path, data)  # the files of a glob, if it is one
    return _IN_MEMORY * sum((data / path).stat().st_size for path in found)


def _largest_pass(source: RowSource, stream: Stream, data: Path) -> int:
    """Return the bytes of the largest files that a pass of a stream can have so far."""
    # `import placer` imports this module, and does without numpy.
    from placer.readers.streams.names import list_stream, unit_of

    units: Counter[str] = Counter()
    for path in list_stream(source, data):
        with suppress(OSError):  # it is gone
            units[unit_of(source, path)] += (data / path).stat().st_size
    return sum(nbytes for _, nbytes in units.most_common(stream.files or 1))
