"""Stores sparse tables in checkpoints: one file for each node that holds partitions.

The tables change while a node writes its file. A save of a table still returns each
partition as it was when the save began (`SparseTable.begin_save`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, to_builtins

from placer.channel.interface import Array, Channel, Key
from placer.checkpoint.finite import HINT, find_row_not_finite
from placer.checkpoint.manifest import (
    CHUNK,
    SPARSE_ARRAYS,
    Manifest,
    StoredSparse,
    tensor_of_rows,
)
from placer.checkpoint.reading import Checkpoint, Wanted
from placer.checkpoint.tensor_file import make_header
from placer.errors import CheckpointError, RunError
from placer.place.layouts.sparse import server_partitions
from placer.place.node_kinds import NodeId
from placer.plan.plan import Plan, SparseTable
from placer.plan.settings.sparse.table import entry_form
from placer.plan.settings.training.optimizers import read_rule
from placer.runtime.control.barrier import RANGE_PART, RANGES, receive_json, send_json
from placer.runtime.control.byte_messages import receive_parts, send_parts

if TYPE_CHECKING:
    from placer.tables.sparse.saving import TableSave
    from placer.tables.sparse.table import SparseTable as HeldTable

Saves = Mapping[str, "TableSave"]
"""Running saves of a node's tables, by name."""
_OTHER_KEYS = "{}: table {} has other keys or counts in the checkpoint than {}, and so an index of its own"
_TOGETHER = 8 * CHUNK
"""Read partitions in groups of at least this many bytes."""


def file_of_rows(node: str) -> str:
    """Return the name of a node's file of sparse tables, such as `ps-0.rows.safetensors`."""
    return f"{NodeId(node).stem}.rows.safetensors"


def holds_rows(plan: Plan, node: str) -> bool:
    """Whether a node has partitions of sparse tables."""
    return any(node in table.holders for table in plan.sparse_tables)


def held_partitions(table: SparseTable, node: str) -> range:
    """Return the partitions of a table that a node holds; empty if it holds no partition."""
    if node not in table.holders:
        return range(0)
    index, count = table.holders.index(node), len(table.holders)
    partitions = table.settings.partitions
    return server_partitions(index, count, partitions)


def begin_saves(tables: Mapping[str, HeldTable], contexts: ExitStack) -> Saves:
    """Begin to save the tables of a node; closing `contexts` ends the saves."""
    return {
        name: contexts.enter_context(table.begin_save())
        for name, table in tables.items()
    }


def groups_of_file(
    plan: Plan,
    node: str,
    saves: Saves,
    *,
    finite: bool,
    on_partition: Callable[[str, dict[str, Array]], None] | None = None,
) -> Iterator[Sequence[memoryview]]:
    """Yield the contents of a node's file of sparse tables, partition by partition.

    Each group is valid only until the next group is requested. `on_partition` is called with
    the table and the arrays of each partition. Raises CheckpointError if `finite` is true and a
    value is not finite.
    """
    types: dict[str, tuple[str, tuple[int, ...]]] = {}
    order = []
    for table in plan.sparse_tables:
        for partition in held_partitions(table, node):
            layout = saves[table.name].layout(partition)
            names = [array for array in SPARSE_ARRAYS if array in layout]
            assert len(names) == len(layout), layout
            order.append((table.name, partition, names))
            for array in names:
                types[tensor_of_rows(table.name, partition, array)] = layout[array]
    header, _ = make_header(types, in_order=True)
    yield [memoryview(header)]
    for name, partition, names in order:
        arrays = saves[name].partition(partition)
        if finite and (problem := find_row_not_finite(name, arrays)):
            raise CheckpointError(problem)
        if on_partition is not None:
            on_partition(name, arrays)
        yield [_bytes_of(arrays[array]) for array in names]


def _bytes_of(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def stored_sparse(plan: Plan) -> dict[str, StoredSparse]:
    """Return the manifest entries of a plan's sparse tables."""
    return {table.name: _stored(table) for table in plan.sparse_tables}


def _stored(table: SparseTable) -> StoredSparse:
    settings = table.settings
    slots: tuple[str, ...] = ()
    if table.trainable:
        slots = tuple(read_rule(settings.rule, settings.hyper).first_slots)
    held = ((node, held_partitions(table, node)) for node in table.holders)
    return StoredSparse(
        dtype=table.dtype,
        dim=settings.dim,
        rule=settings.rule if table.trainable else None,
        slots=slots,
        partitions=settings.partitions,
        files=tuple((file_of_rows(n), each.start, each.stop) for n, each in held),
        entries=entry_form(settings),
    )


def compare_sparse(
    manifest: Manifest, tables: Iterable[SparseTable], *, only_values: bool = False
) -> tuple[list[str], list[str], list[str]]:
    """Compare the sparse tables of a model with a checkpoint.

    `only_values` ignores the optimizer and the counts of keys without a row. Returns three
    lists of texts: tables missing from the checkpoint, tables that differ, and tables with the
    state of another optimizer.
    """
    missing, changed, without_state = [], [], []
    for table in tables:
        stored = manifest.sparse.get(table.name)
        own = _stored(table)
        if stored is None:
            missing.append(table.name)
        elif (stored.dtype, stored.dim) != (own.dtype, own.dim):
            changed.append(
                f"{table.name} has rows of {stored.dtype}[{stored.dim}], but the model"
                f" has rows of {own.dtype}[{own.dim}]"
            )
        elif stored.partitions != own.partitions:
            changed.append(
                f"{table.name} has {stored.partitions} partitions, but"
                f" {own.partitions} in the model"
            )
        elif not only_values and _have_other_entries(stored, own):
            changed.append(
                f"{table.name} stores {stored.entries} for keys without a row, but the"
                f" model stores {own.entries}"
            )
        elif own.slots and (stored.rule, stored.slots) != (own.rule, own.slots):
            without_state.append(f"{table.name} ({stored.rule}, not {own.rule})")
    return missing, changed, without_state


def load_rows(
    plan: Plan,
    node: str,
    tables: dict[str, HeldTable],
    stored: Mapping[str, StoredSparse],
    partitions: Iterator[dict[str, Array]],
    tell: Callable[[str], object],
    *,
    only_values: bool = False,
) -> None:
    """Load the partitions of a node from a checkpoint.

    Args:
        tables: the node's tables, by name. All are emptied first; a table that the
            checkpoint lacks stays empty.
        stored: the tables of the checkpoint.
        partitions: the arrays of the partitions in `stored_partitions`.
        tell: called with a text about a table that cannot share the index of another one.
        only_values: load only keys, values and scores. Optimizer state starts anew, and
            each row counts as seen once.

    Raises:
        CheckpointError: if the checkpoint is damaged or does not fit.
    """
    for name, table in tables.items():
        owner = table.group[0].settings.name
        shares = owner != name and (owner in stored) == (name in stored)
        tables[name] = table.emptied(tables[owner] if shares else None)
    try:
        for planned, partition in stored_partitions(plan, node, stored):
            name, own = planned.name, _stored(planned)
            theirs = stored[name]
            arrays, has_state = next(partitions), not only_values
            if only_values:
                values, scores = arrays["values"][:, : theirs.dim], arrays.get("scores")
                arrays = tables[name].arrays_of_values(arrays["keys"], values, scores)
            else:
                has_state = (theirs.rule, theirs.slots) == (own.rule, own.slots)
            if not tables[name].has_keys_of(partition, arrays):
                tell(
                    _OTHER_KEYS.format(node, name, tables[name].group[0].settings.name)
                )
                tables[name] = tables[name].separated(partition)
            tables[name].load_partition(partition, arrays, has_state=has_state)
    except RunError as error:
        raise CheckpointError(error.message, hint=error.hint) from error


def stored_partitions(
    plan: Plan, node: str, stored: Mapping[str, StoredSparse]
) -> Iterator[tuple[SparseTable, int]]:
    """Yield the tables and numbers of partitions that a node loads, in order."""
    for table in plan.sparse_tables:
        if table.name in stored:
            for partition in held_partitions(table, node):
                yield table, partition


def _have_other_entries(stored: StoredSparse, own: StoredSparse) -> bool:
    return bool(stored.entries and own.entries) and stored.entries != own.entries


def read_stored(
    plan: Plan, node: str, checkpoint: Checkpoint
) -> Iterator[dict[str, Array]]:
    """Read the partitions that a node loads from a checkpoint, in order."""
    stored = stored_partitions(plan, node, checkpoint.manifest.sparse)
    numbers = ((table.name, number) for table, number in stored)
    return read_partitions(
        checkpoint, numbers, finite=plan.settings.train.nan == "stop"
    )


def read_partitions(
    checkpoint: Checkpoint,
    partitions: Iterable[tuple[str, int]],
    names: Sequence[str] = SPARSE_ARRAYS,
    *,
    finite: bool,
) -> Iterator[dict[str, Array]]:
    """Read arrays of partitions of sparse tables, in order.

    Small partitions are read in groups, because a chunk of a file must be read as a whole to
    check it and contains many partitions.

    Args:
        partitions: the table and the number of each partition.
        names: the arrays to read.
        finite: whether all values must be finite.

    Raises:
        CheckpointError: if the checkpoint is damaged or a value is not finite.
    """
    together: list[tuple[str, dict[str, Array]]] = []
    wanted: list[Wanted] = []
    nbytes = 0
    for table, partition in partitions:
        tensors = checkpoint.partition(table, partition)
        arrays: dict[str, Any] = {
            name: np.empty(each.shape, each.dtype)
            for name, each in tensors.items()
            if name in names
        }
        views = {name: _bytes_of(array) for name, array in arrays.items()}
        together.append((table, arrays))
        wanted += checkpoint.wanted_rows(table, partition, views)
        nbytes += sum(map(len, views.values()))
        if nbytes >= _TOGETHER:
            yield from _read_together(checkpoint, together, wanted, finite=finite)
            together, wanted, nbytes = [], [], 0
    yield from _read_together(checkpoint, together, wanted, finite=finite)


def _read_together(
    checkpoint: Checkpoint,
    together: Sequence[tuple[str, dict[str, Array]]],
    wanted: Sequence[Wanted],
    *,
    finite: bool,
) -> Iterator[dict[str, Array]]:
    checkpoint.read(wanted)
    for table, arrays in together:
        if finite and (problem := find_row_not_finite(table, arrays)):
            raise CheckpointError(f"'{checkpoint.folder}': {problem}", hint=HINT)
        yield arrays


class _Arrays(Struct, frozen=True):
    """The dtype and shape of the arrays that follow, or why a partition cannot be read."""

    arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
    problem: str = ""


def serve_rows(plan: Plan, channel: Channel, node: str, checkpoint: Checkpoint) -> None:
    """Send the partitions of a node that has no access to the checkpoint."""
    partitions = read_stored(plan, node, checkpoint)
    while True:
        try:
            arrays = next(partitions, None)
        except CheckpointError as error:
            _send_head(channel, node, _Arrays(problem=error.message))
            return
        if arrays is None:
            return
        types = {name: (str(a.dtype), a.shape) for name, a in arrays.items()}
        _send_head(channel, node, _Arrays(types))
        views = [_bytes_of(array) for array in arrays.values()]
        send_parts(channel, node, Key(RANGE_PART, 1), views)


def _send_head(channel: Channel, node: str, head: _Arrays) -> None:
    send_json(channel, node, Key(RANGES, 1), to_builtins(head))


def receive_partitions(
    plan: Plan, channel: Channel, node: str, stored: Mapping[str, StoredSparse]
) -> Iterator[dict[str, Array]]:
    """Receive the partitions that `serve_rows` sends, in order.

    Raises CheckpointError if the control node cannot read a partition. It then sends no more.
    """
    for _ in stored_partitions(plan, node, stored):
        yield _receive_partition(channel, plan.control)


def _receive_partition(channel: Channel, control: str) -> dict[str, Array]:
    head = receive_json(channel, control, Key(RANGES, 1), _Arrays)
    if head.problem:
        raise CheckpointError(head.problem)
    arrays = {
        name: np.empty(shape, dtype) for name, (dtype, shape) in head.arrays.items()
    }
    views = [_bytes_of(array) for array in arrays.values()]
    parts = receive_parts(channel, control, Key(RANGE_PART, 1), sum(map(len, views)))
    for view in views:
        at = 0
        while at < len(view):
            part = next(parts)
            view[at : at + len(part)] = part
            at += len(part)
    return arrays
