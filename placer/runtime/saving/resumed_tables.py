"""Loads the tables of a node from a checkpoint.

Every node reads the elements of its own blocks, from any position in the files. The control
node sends the elements to nodes without access to the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from placer.channel.interface import Array, Channel, Key
from placer.checkpoint.finite import HINT, find_nan, find_not_finite
from placer.checkpoint.manifest import FILE, OLD, Manifest, Progress, StoredSparse
from placer.checkpoint.reading import Checkpoint, Wanted
from placer.errors import CheckpointError, DataError
from placer.plan.plan import NodePlan, Plan, Table
from placer.plan.settings.training.optimizers import VALUES
from placer.plan.settings.training.slicing import Block
from placer.plan.settings.training.update_modes import Geo
from placer.runtime.asynchronous.local_values import LocalValues
from placer.runtime.control.barrier import (
    RANGE_PART,
    RANGES,
    RESUME,
    barrier,
    receive_json,
    send_json,
)
from placer.runtime.control.byte_messages import send_parts
from placer.runtime.control.events import Notice
from placer.runtime.control.execution import Execution
from placer.runtime.control.handshake import fingerprint
from placer.runtime.saving.optimizer_state import (
    array_of,
    first_difference,
    states_of_blocks,
    stored_outer_state,
    stored_state,
)
from placer.runtime.saving.row_files import (
    load_rows,
    read_stored,
    receive_partitions,
    serve_rows,
)
from placer.tables.block_table import BlockTable

if TYPE_CHECKING:
    from placer.tables.sparse.table import SparseTable

SERVED_BYTES: Final = 64 << 20
"""Bytes to read at a time for a node without access to the checkpoint."""


class Choice(msgspec.Struct, frozen=True):
    """The chosen checkpoint.

    Attributes:
        path: its path; empty for no checkpoint.
        fingerprint: its digest.
        has_new_rows: whether the run goes on with other rows.
        skips_pass: whether the run goes on with the next pass of a stream.
    """

    path: str = ""
    fingerprint: str = ""
    has_new_rows: bool = False
    skips_pass: bool = False


class Contents(msgspec.Struct, frozen=True):
    """The data that a node loads from a checkpoint.

    Attributes:
        progress: the position of the run.
        arrays: the arrays to read, in order. Each has the name of the table, the name of
            the array in the checkpoint, the number of the block, and the worker. The
            worker is empty unless the array contains local values of a worker.
        updates: the number of updates of each block, by table.
        sparse: the sparse tables of the checkpoint.
    """

    progress: Progress
    arrays: tuple[tuple[str, str, int, str], ...]
    updates: dict[str, tuple[int, ...]]
    sparse: dict[str, StoredSparse]


def load_tables(
    execution: Execution,
    tables: Mapping[str, BlockTable],
    local: Mapping[str, LocalValues],
    sparse: dict[str, SparseTable],
    choice: Choice,
    checkpoint: Checkpoint | None,
) -> Progress:
    """Load the tables of a node from the chosen checkpoint, and return its position.

    The control node also sends data to the nodes without access to the checkpoint. Raises
    CheckpointError if the checkpoint is damaged.
    """
    plan, channel = execution.plan, execution.channel
    problem = None
    if is_seen := checkpoint is not None or _sees(choice):
        try:
            checkpoint = checkpoint or Checkpoint(Path(choice.path))
        except CheckpointError as error:
            problem = error
    reports = barrier(plan, channel, {"remote": not is_seen}, RESUME)
    if problem is not None:
        raise problem
    if checkpoint is None:
        contents = receive_json(channel, plan.control, Key(RANGES, 0), Contents)
        loaded = _Loaded(plan, execution.me, tables, local, contents)
        loaded.receive(channel, plan.control)
        _receive_rows(execution, sparse, contents.sparse)
    else:
        contents = _contents(plan, execution.me, checkpoint.manifest)
        loaded = _Loaded(plan, execution.me, tables, local, contents)
        try:
            loaded.read(checkpoint)
            me = execution.me.name
            partitions = read_stored(plan, me, checkpoint)
            tell = _telling(execution)
            load_rows(plan, me, sparse, contents.sparse, partitions, tell)
        except CheckpointError as error:
            problem = error
    if execution.is_control:
        assert checkpoint is not None
        for node, each in zip(plan.nodes, reports, strict=True):
            if each["remote"] and _serve(plan, channel, node, checkpoint):
                serve_rows(plan, channel, node.name, checkpoint)
    if problem is not None:
        raise problem
    if plan.settings.train.nan == "stop":
        loaded.check_finite(choice.path)
    loaded.store()
    return contents.progress


def _receive_rows(
    execution: Execution,
    sparse: dict[str, SparseTable],
    stored: Mapping[str, StoredSparse],
) -> None:
    plan, me = execution.plan, execution.me.name
    tell = _telling(execution)
    partitions = receive_partitions(plan, execution.channel, me, stored)
    try:
        load_rows(plan, me, sparse, stored, partitions, tell)
    except CheckpointError:
        for _ in partitions:
            pass  # receive all messages, so that those of an earlier checkpoint can follow
        raise


def _telling(execution: Execution) -> Callable[[str], object]:
    """Return a function that tells a person a text."""
    return lambda text: execution.report(Notice(text))


def _sees(choice: Choice) -> bool:
    """Whether this node has access to the chosen checkpoint: it reads the same manifest."""
    try:
        return fingerprint(Path(choice.path) / FILE) == choice.fingerprint
    except DataError:
        return False


def _contents(plan: Plan, node: NodePlan, manifest: Manifest) -> Contents:
    """Return the data that a node loads from a checkpoint.

    If the checkpoint has the same workers, each worker loads its own local values. Otherwise
    it loads the servers' values and the slots of the first worker.
    """
    own_workers = {
        each.name for each in plan.nodes if any(table.local for table in each.tables)
    }
    arrays: list[tuple[str, str, int, str]] = []
    updates: dict[str, tuple[int, ...]] = {}
    for table in node.tables:
        states = states_of_blocks(plan, table)
        counts = [0] * len(table.blocks)
        for index, block in enumerate(table.blocks):
            stored = manifest.parameters.get(block.parameter)
            if stored is None:
                continue
            count, worker, names = stored.updates, "", [VALUES]
            state = stored_state(stored)
            if isinstance(table.mode, Geo):
                state = stored_outer_state(stored)
                count = 0 if stored.outer is None else stored.outer.updates
            elif table.local and stored.local.keys() == own_workers:
                worker = node.name
                count = stored.local[worker].updates
                names.append(OLD)
            own = states[index]
            if state.rule == own.rule and not first_difference(state, own):
                names += [array_of(table, slot) for slot in own.names]
                counts[index] = count
            arrays += [(table.name, name, index, worker) for name in names]
        updates[table.name] = tuple(counts)
    return Contents(manifest.progress, tuple(arrays), updates, manifest.sparse)


class _Loaded:
    def __init__(
        self,
        plan: Plan,
        me: NodePlan,
        tables: Mapping[str, BlockTable],
        local: Mapping[str, LocalValues],
        contents: Contents,
    ) -> None:
        self._me, self._tables, self._local = me, tables, local
        self._states = {
            table.name: states_of_blocks(plan, table) for table in me.tables
        }
        self._contents = contents
        self._arrays = {
            (name, array, index): self._empty(name, array, index)
            for name, array, index, _ in contents.arrays
        }

    def _empty(self, name: str, array: str, index: int) -> Array:
        table, state = self._tables[name], self._states[name][index]
        if array in state.leaves:
            leaf = state.leaves[array]
            return np.empty(prod(leaf.shape), leaf.dtype)
        dtype = state.slots.get(array, str(table.dtype))
        return np.empty(table.blocks[index].numel, dtype)

    def read(self, checkpoint: Checkpoint) -> None:
        """Read the arrays from the files of the checkpoint."""
        checkpoint.read([
            wanted
            for name, array, index, worker in self._contents.arrays
            for wanted in _wanted(
                checkpoint,
                self._tables[name].blocks[index],
                array,
                worker,
                self._arrays[name, array, index],
            )
        ])  # fmt: skip

    def receive(self, channel: Channel, control: str) -> None:
        """Receive the arrays from the control node, in order."""
        for out in self._arrays.values():
            view, at = out.view(np.uint8).data, 0
            while at < len(view):
                parts = channel.receive(control, Key(RANGE_PART, 0))
                if not parts:
                    raise CheckpointError("the control node cannot read the checkpoint")
                part = parts[0].data
                view[at : at + len(part)] = part
                at += len(part)

    def check_finite(self, checkpoint: str) -> None:
        """Raise CheckpointError if an array contains a value that is not finite."""
        optax = {each.name for each in self._me.tables if each.transformation}
        for (table, name, index), array in self._arrays.items():
            block = self._tables[table].blocks[index].name
            stored = block if name == VALUES else f"{block}/{name}"
            is_state = table in optax and name in self._states[table][index].names
            find = find_nan if is_state else find_not_finite
            if problem := find({stored: array}):
                raise CheckpointError(f"'{checkpoint}': {problem}", hint=HINT)

    def store(self) -> None:
        """Store the arrays in the tables; arrays that the checkpoint lacks do not change."""
        for planned in self._me.tables:
            name, table = planned.name, self._tables[planned.name]
            values = []
            for index, value in enumerate(table.values()):
                loaded = self._arrays.pop((name, VALUES, index), None)
                loaded = np.array(value) if loaded is None else loaded
                values.append(loaded.reshape(table.blocks[index].shape))
            table.load(values)
            table.load_slots(self._slots(planned))
            table.load_updates(self._contents.updates[name])
            if name in self._local:
                old = [
                    self._arrays.pop((name, OLD, index), value)
                    for index, value in enumerate(values)
                ]
                self._local[name].load_old(old)

    def _slots(self, planned: Table) -> dict[str, list[Array | None]]:
        """Return the slots of a table whose values are loaded: loaded and initial ones.

        A block without a slot has None.
        """
        name, table, initial = planned.name, self._tables[planned.name], None
        slots: dict[str, list[Array | None]] = {}
        for index, state in enumerate(self._states[name]):
            for slot in state.names:
                now = slots.setdefault(slot, [None] * len(table.blocks))
                stored = array_of(planned, slot)
                loaded = self._arrays.pop((name, stored, index), None)
                if loaded is None:
                    initial = initial or table.initial_slots()
                    loaded = np.array(initial[slot][index])
                leaf = state.leaves.get(slot)
                shape = leaf.shape if leaf else table.blocks[index].shape
                now[index] = loaded.reshape(shape)
        return slots


def _wanted(
    checkpoint: Checkpoint, block: Block, array: str, worker: str, out: Array
) -> Iterator[Wanted]:
    view = out.view(np.uint8).data
    leaves = checkpoint.manifest.parameters[block.parameter].leaves
    start = 0 if array in leaves else block.start
    return checkpoint.wanted(block.parameter, array, start, view, worker)


def _serve(
    plan: Plan, channel: Channel, node: NodePlan, checkpoint: Checkpoint
) -> bool:
    """Send the dense data of a checkpoint to a node without access to it.

    Returns:
        Whether the checkpoint could be read. If not, the last message has no arrays.
    """
    contents = _contents(plan, node, checkpoint.manifest)
    tables = {table.name: table for table in node.tables}
    send_json(channel, node.name, Key(RANGES, 0), msgspec.to_builtins(contents))
    for group in _groups(contents, tables, checkpoint.manifest):
        try:
            checkpoint.read([
                wanted
                for block, array, worker, out in group
                for wanted in _wanted(checkpoint, block, array, worker, out)
            ])  # fmt: skip
        except CheckpointError:
            channel.send(node.name, Key(RANGE_PART, 0), [])
            return False
        for *_, out in group:
            view = out.view(np.uint8).data
            send_parts(channel, node.name, Key(RANGE_PART, 0), [view])
    return True


def _groups(
    contents: Contents, tables: Mapping[str, Table], manifest: Manifest
) -> Iterator[list[tuple[Block, str, str, Array]]]:
    """Yield groups of arrays to read together, in the order of the contents.

    Each entry has the block, the name of the array, the worker, and an empty array. Reading
    in groups avoids reading a chunk once for each of its small arrays.
    """
    group: list[tuple[Block, str, str, Array]] = []
    nbytes = 0
    for name, array, index, worker in contents.arrays:
        block = tables[name].blocks[index]
        stored = manifest.parameters[block.parameter]
        kind = stored.type_of(array)
        size = prod(kind.shape) if array in stored.leaves else block.numel
        out = np.empty(size, kind.dtype)
        group.append((block, array, worker, out))
        nbytes += out.nbytes
        if nbytes >= SERVED_BYTES:
            yield group
            group, nbytes = [], 0
    if group:
        yield group
