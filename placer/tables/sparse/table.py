"""A sparse table: the rows of a parameter by key, in host memory.

The rows of all keys that a batch has are found, updated and created together. A push is
the only thing that changes rows: a pull never does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from placer.config import optimizers
from placer.config.row_bytes import row_length
from placer.config.sparse import (
    Always,
    Bloom,
    Count,
    Probability,
    Score,
)
from placer.config.sparse import (
    SparseTable as Settings,
)
from placer.errors import RunError
from placer.memory.limit import available_nbytes
from placer.tables.initial.draws import parameter_key
from placer.tables.rules import (
    changing_numbers,
    constant_numbers,
    kernels_of,
    record_of_numbers,
)
from placer.tables.sparse import admission
from placer.tables.sparse.eviction import Candidates, evict_rows, note_new_rows
from placer.tables.sparse.forgetting import (
    Limits,
    forget_partition,
    partitions_of_step,
)
from placer.tables.sparse.hashing import U64, mix, partition_of
from placer.tables.sparse.index import (
    SlotSpace,
    count_absent,
    find_rows,
    set_words,
)
from placer.tables.sparse.initial_rows import Fill, constant_rows, drawn_rows
from placer.tables.sparse.row_updates import (
    RowUpdate,
    bias_corrections,
    compile_row_update,
)
from placer.tables.sparse.rows import (
    begin_rows,
    compile_gather,
    fill_slots,
    note_seen,
)
from placer.tables.sparse.state import (
    ABSENT,
    CHUNK,
    COUNTED,
    NONE,
    PARTITION,
    Array,
    State,
)
from placer.tables.sparse.store import reserve

_SMALL = 1 << 24
"""Bytes of a table that is only there to compile its functions."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did with its keys: rows that it updated, keys that it `admitted` to a
    row, keys that it `refused` one, and rows that it `evicted` over the capacity."""

    updated: int
    admitted: int
    refused: int
    evicted: int


class SparseTable:
    """The rows of the keys of some partitions.

    One thread at a time uses a table.

    Args:
        settings: the settings of the table.
        seed: the seed of the model.
        dtype: the dtype of values, slots and gradients: float32 or float64.
        memory: bytes that the table may use; by default, those of the machine.

    Attributes:
        settings: the settings of the table.
        dtype: the dtype of values, slots and gradients.
        forgotten: the number of rows that were forgotten so far.
    """

    def __init__(
        self,
        settings: Settings,
        seed: int,
        dtype: str = "float32",
        memory: int | None = None,
    ) -> None:
        self.settings = settings
        self.forgotten = 0
        self.dtype = np.dtype(dtype)
        rule = settings.rule
        hyper = self._hyper = optimizers.complete(rule, settings.hyper)
        (kernel,) = kernels_of(rule, hyper)
        slots = optimizers.slots(rule, hyper)
        row_slot = optimizers.row_slot(rule)
        self._first_scalar = self.dtype.type(slots.pop(row_slot, 0.0))
        self._first_slots = np.repeat(
            np.array([*slots.values()], self.dtype), settings.dim
        )
        counts_updates = "b1" in hyper
        self._gather = compile_gather(settings.dim, dtype)
        self._update = compile_row_update(
            RowUpdate(
                kernel,
                settings.dim,
                dtype,
                counts_updates,
                row_slot and ("decayed" if counts_updates else "sum"),
                settings.bounds is not None,
            )
        )
        self._corrections = (
            bias_corrections(hyper, dtype)
            if counts_updates
            else np.empty((0, 3), self.dtype)
        )
        self._memory = available_nbytes() if memory is None else memory
        self._bits = U64(settings.partitions.bit_length() - 1)
        self._state = _reserve_state(
            settings,
            self.dtype,
            settings.dim * (1 + len(slots)),
            has_scalar=bool(row_slot),
            counts_updates=counts_updates,
            nbytes=self._memory,
        )
        self._slots = SlotSpace(self._state, int(self._bits))
        self._fill = _initial_rows(settings, seed)
        self._salt = sha256(f"{seed}/{settings.name}".encode()).digest()
        self._limits = Limits.of(
            settings.forget,
            settings.score,
            scored=isinstance(settings.admit, Score),
        )
        self._filters = _filters(settings)
        self._candidates: Candidates | None = None
        if settings.capacity is not None:
            self._candidates = Candidates.none(settings.partitions)
            ends = np.arange(settings.partitions + 1) * settings.capacity
            self._shares = np.diff(ends // settings.partitions)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._state.partitions["rows"].sum())

    @property
    def nbytes(self) -> int:
        """The bytes of memory that rows, their slots and the index take."""
        state = self._state
        used = int(state.chunks[0]) * CHUNK
        by_row = (state.values, state.meta, state.scalars, state.updates)
        arrays = [each for each in (*by_row, state.times, state.scores) if each.size]
        return self._slots.nbytes + used * sum(int(each[0].nbytes) for each in arrays)

    def warm_up(self) -> None:
        """Compile what the methods need, so that the first calls are as fast as others."""
        empty = SparseTable(self.settings, 0, self.dtype.name, _SMALL)
        key = np.zeros(1, np.uint64)
        for step in range(2):  # the first one admits the key
            empty.pull(key)
            empty.push(
                key,
                np.zeros((1, self.settings.dim), self.dtype),
                learning_rate=0.0,
                step=step,
                occurrences=np.full(1, 2**32 - 1, np.uint32),
                scores=np.full(1, np.inf, np.float32),
            )
        empty.shrink(step)

    def pull(self, keys: Array, out: Array | None = None) -> Array:
        """Return the values of keys.

        A key without a row reads the values with which its row would begin if keys are
        admitted always, and the default value otherwise.

        Args:
            keys: uint64 keys, of shape [n].
            out: where to write them, of shape [n, dim] and the table's dtype.

        Returns:
            `out`, or a new array.

        Raises:
            RunError: the keys are not 64-bit integers, or `out` does not fit.
        """
        keys = self._check_keys(keys)
        if out is None:
            out = np.empty((keys.size, self.settings.dim), self.dtype)
        self._check("the result", out, (keys.size, self.settings.dim), self.dtype)
        rows = self._find(keys)
        default = self.dtype.type(self.settings.default)
        self._gather(self._state.values, rows, default, out)
        if isinstance(self.settings.admit, Always):
            absent = np.flatnonzero(rows < 0)
            if absent.size:
                self._fill(keys[absent], absent, out)
        return out

    def push(
        self,
        keys: Array,
        gradients: Array,
        *,
        learning_rate: float,
        step: int,
        occurrences: Array | None = None,
        scores: Array | None = None,
        times: Array | None = None,
        scale: float = 1.0,
    ) -> Pushed:
        """Count keys, admit them or not, and update the rows of those that have one.

        The push that admits a key creates its row, and drops its gradient unless keys are
        admitted always.

        Args:
            keys: uint64 keys, of shape [n], each once.
            gradients: the gradient of each, of shape [n, dim] and the table's dtype.
            learning_rate: the learning rate of this step.
            step: the step of the table, which never falls.
            occurrences: how often each key occurred, at least once, uint32 of shape [n];
                by default once.
            scores: what each key adds to its score, float32 of shape [n]; by default 0.
            times: when each key was seen, in seconds, of shape [n]; by default 0.
            scale: a factor of the gradients.

        Raises:
            RunError: the arrays do not fit, or the table would take more than its
                memory; then nothing has changed.
        """
        keys, count = self._check_keys(keys), keys.size
        if occurrences is None:
            occurrences = np.ones(count, np.uint32)
        if scores is None:
            scores = np.zeros(count, np.float32)
        self._check("gradients", gradients, (count, self.settings.dim), self.dtype)
        self._check("occurrences", occurrences, (count,), np.dtype(np.uint32))
        self._check("scores", scores, (count,), np.dtype(np.float32))
        if not occurrences.all():
            raise RunError(f"table {self.settings.name}: a key occurs 0 times")
        seconds = np.zeros(count) if times is None else np.asarray(times)
        self._check("times", seconds, (count,), seconds.dtype)
        seconds = np.floor(seconds).astype(np.int64).astype(np.uint32)
        counts, sums = occurrences.astype(np.int64), scores.astype(np.float32)
        rows = self._find(keys)
        words = np.zeros(count, np.uint64)
        new = self._admit(keys, rows, counts, sums, seconds, step, words)
        without_row = int(np.count_nonzero(rows < 0))
        admitted = int(np.count_nonzero(new))
        updated = rows.copy()
        if admitted or words.any():
            self._begin(keys, rows, new, admitted, words)
        if isinstance(self.settings.admit, Always):
            updated = rows
        note_seen(self._state, rows, counts, sums, seconds, np.int64(step))
        self._update_rows(updated, gradients, learning_rate, scale)
        return Pushed(
            int(np.count_nonzero(updated >= 0)),
            admitted,
            without_row - admitted,
            self._evict(keys, rows, new),
        )

    def forget(self, step: int, now: float = 0.0) -> int:
        """Look at the partitions of a step's part of the sweep, and forget keys.

        Args:
            step: the step of the table.
            now: the time of the latest event, in seconds.

        Returns:
            The number of rows that were forgotten.
        """
        every, partitions = self.settings.forget.every, self.settings.partitions
        return self._forget(partitions_of_step(step, every, partitions), step, now)

    def shrink(self, step: int, now: float = 0.0) -> int:
        """Do a whole sweep at once; see `forget`."""
        return self._forget(range(self.settings.partitions), step, now)

    def save_partition(self, partition: int) -> dict[str, Array]:
        """Return what a partition has, as arrays.

        Returns:
            `keys` (uint64) and for each of them its row of `values` with the slots,
            `seen` and `count` (uint32), and where the table has them `scalars`,
            `updates`, `times` and `scores`; `entry_keys` and `entry_words` (uint64), the
            keys without a row; and the counters `filter` (uint8) of its Bloom filter.
        """
        state = self._state
        rows = self._rows_of(partition)
        word = state.meta[rows, 1]
        saved = {
            "keys": state.meta[rows, 0],
            "values": state.values[rows],
            "seen": word.astype(np.uint32),
            "count": (word >> U64(32)).astype(np.uint32),
        }
        for name in ("scalars", "updates", "times", "scores"):
            array = getattr(state, name)
            if array.size:
                saved[name] = array[rows]
        own = state.partitions[partition]
        start, stop = int(own["start"]), int(own["start"] + own["capacity"])
        slots = state.slots[start:stop]
        entries = slots[(slots[:, 1] != 0) & (slots[:, 1] & U64(1) == 0)]
        saved["entry_keys"], saved["entry_words"] = entries[:, 0], entries[:, 1]
        if self._filters.size:
            saved["filter"] = self._filters[partition].copy()
        return saved

    def load_partition(self, partition: int, saved: Mapping[str, Array]) -> None:
        """Add to a partition without entries what `save_partition` returned.

        Raises:
            RunError: the partition has entries, or the arrays are not those of this
                table's settings or of this partition.
        """
        state = self._state
        self._check_saved(partition, saved)
        keys, entry_keys = saved["keys"], saved["entry_keys"]
        both = np.concatenate([keys, entry_keys])
        rows = np.full(both.size, ABSENT, np.int64)
        words = np.concatenate([np.zeros_like(keys), saved["entry_words"]])
        new = np.arange(both.size) < keys.size
        self._begin(both, rows, new, keys.size, words)
        rows = rows[: keys.size]
        state.values[rows] = saved["values"]
        count = saved["count"].astype(np.uint64)
        state.meta[rows, 1] = (count << U64(32)) | saved["seen"]
        for name in ("scalars", "updates", "times", "scores"):
            if name in saved:
                getattr(state, name)[rows] = saved[name]
        if self._filters.size:
            self._filters[partition] = saved["filter"]
        if self._candidates is not None:
            self._candidates = Candidates.none(self.settings.partitions)

    def _find(self, keys: Array) -> Array:
        rows = np.empty(keys.size, np.int64)
        find_rows(self._state, self._bits, keys, rows)
        return rows

    def _admit(
        self,
        keys: Array,
        rows: Array,
        counts: Array,
        scores: Array,
        seconds: Array,
        step: int,
        words: Array,
    ) -> Array:
        """Return which of the keys get a row now (bool, of shape [n]), and write the
        words of the entries of others."""
        admit = self.settings.admit
        new = np.zeros(keys.size, np.bool_)
        if self._limits.by_steps:
            seconds = np.full(keys.size, step & 0xFFFFFFFF, np.uint32)
        match admit:
            case Always():
                new = rows < 0
            case Count():
                admission.admit_counted(
                    self._state,
                    self._bits,
                    keys,
                    rows,
                    counts,
                    admit.n,
                    seconds,
                    words,
                    new,
                )
            case Score():
                admission.admit_scored(
                    self._state,
                    self._bits,
                    keys,
                    rows,
                    scores,
                    np.float32(admit.least),
                    seconds,
                    words,
                    new,
                )
            case Bloom():
                admission.admit_filtered(
                    self._bits, keys, rows, counts, admit.n, self._filters, new
                )
            case Probability():
                digest = sha256(self._salt + step.to_bytes(8, "little")).digest()
                salt = U64(int.from_bytes(digest[:8], "little"))
                admission.admit_by_chance(keys, rows, counts, admit.p, salt, new)
        return new

    def _begin(
        self, keys: Array, rows: Array, new: Array, count: int, words: Array
    ) -> None:
        """Create rows, of which there are `count`, and write the words of entries."""
        absent = np.zeros(self.settings.partitions, np.int64)
        without_entry = np.where(new | (words != 0), rows, np.int64(COUNTED))
        count_absent(self._bits, keys, without_entry, absent)
        self._slots.make_room(absent)
        self._check_memory(count)
        begin_rows(self._state, self._bits, keys, new, rows, words)
        set_words(self._state, self._bits, keys, words)
        created = rows[new]
        self._fill(keys[new], created, self._state.values)
        fill_slots(
            self._state,
            created,
            np.int64(self.settings.dim),
            self._first_slots,
            self._first_scalar,
        )

    def _check_memory(self, rows: int) -> None:
        # A partition may need a chunk for a single row.
        chunks = min(rows, self.settings.partitions + -(-rows // CHUNK))
        no_room = self._state.chunk_before.size - int(self._state.chunks[0]) < chunks
        if no_room or self.nbytes > self._memory:
            raise RunError(
                f"table {self.settings.name}: {self.rows:,} rows and"
                f" {rows:,} new ones need more than its memory",
                hint="set a capacity, forget rows, or give its servers more memory",
            )

    def _update_rows(
        self, rows: Array, gradients: Array, rate: float, scale: float
    ) -> None:
        real, low_high = self.dtype.type, self.settings.bounds or (0.0, 0.0)
        constants = constant_numbers(self._hyper, decays=True)
        changing = changing_numbers(self._hyper, 1, rate, self.dtype)
        numbers = np.array(constants._replace(**changing), self.dtype)
        self._update(
            rows,
            np.ascontiguousarray(gradients, self.dtype),
            real(scale),
            numbers.view(record_of_numbers(self.dtype)),
            self._corrections,
            real(low_high[0]),
            real(low_high[1]),
            self._state.values,
            self._state.scalars,
            self._state.updates,
        )

    def _evict(self, keys: Array, rows: Array, new: Array) -> int:
        if self._candidates is None:
            return 0
        by_count = self.settings.evict == "lfu"
        note_new_rows(
            self._state, self._bits, self._candidates, keys, rows, new, by_count
        )
        return int(
            evict_rows(
                self._state, self._bits, self._candidates, self._shares, by_count
            )
        )

    def _forget(self, partitions: Iterable[int], step: int, now: float) -> int:
        if not self._limits.is_active:
            return 0
        forgotten = 0
        for partition in partitions:
            rows, _ = forget_partition(
                self._state,
                self._bits,
                np.int64(partition),
                np.int64(step),
                np.int64(np.floor(now)),
                self._limits,
                np.int64(self.settings.dim),
            )
            forgotten += int(rows)
        self.forgotten += forgotten
        return forgotten

    def _rows_of(self, partition: int) -> Array:
        """Return the rows of a partition, in the order in which they were taken first."""
        chunks = []
        chunk = int(self._state.partitions[partition]["chunk"])
        while chunk != NONE:
            chunks.append(chunk)
            chunk = int(self._state.chunk_before[chunk])
        starts = np.array(chunks[::-1], np.int64) * CHUNK
        rows: Array = (starts[:, None] + np.arange(CHUNK)).reshape(-1)
        used: Array = self._state.meta[rows, 1] != 0
        return rows[used]

    def _check_saved(self, partition: int, saved: Mapping[str, Array]) -> None:
        own = self.save_partition(partition)
        name = f"table {self.settings.name}, partition {partition}"
        if own["keys"].size or own["entry_keys"].size:
            raise RunError(f"{name}: it has entries already")
        if saved.keys() != own.keys():
            raise RunError(
                f"{name}: the saved arrays are {', '.join(sorted(saved))}, and those of"
                f" the table {', '.join(sorted(own))}"
            )
        entries = "entry_keys", "entry_words"
        for each, array in own.items():
            count = saved["entry_keys" if each in entries else "keys"].shape[:1]
            shape = array.shape if each == "filter" else (*count, *array.shape[1:])
            self._check(f"saved {each} of {partition}", saved[each], shape, array.dtype)
        keys = np.concatenate([saved["keys"], saved["entry_keys"]])
        if np.any(partition_of(mix(keys), self._bits) != partition):
            raise RunError(f"{name}: some of the saved keys are of another partition")
        is_entry = saved["entry_words"] & U64(3) == 2
        if (
            np.unique(keys).size < keys.size
            or not saved["count"].all() & is_entry.all()
        ):
            raise RunError(f"{name}: the saved arrays are damaged")

    def _check_keys(self, keys: Array) -> Array:
        """Return keys as uint64, of the same bits, in memory that may be written to: so
        that the loops are compiled once. RunError for others."""
        if keys.ndim != 1 or keys.dtype not in (np.uint64, np.int64):
            raise RunError(
                f"table {self.settings.name}: keys are {keys.dtype}{list(keys.shape)},"
                " not int64[n] or uint64[n]"
            )
        return np.require(keys, None, ["C", "W"]).view(np.uint64)

    def _check(
        self, what: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        """Raise RunError for an array of another shape or dtype: the loops, which check
        no bounds, would read or write what is not theirs."""
        if array.shape != shape or array.dtype != dtype:
            raise RunError(
                f"table {self.settings.name}: {what} are {array.dtype}"
                f"{list(array.shape)}, not {dtype}{list(shape)}"
            )


def _initial_rows(settings: Settings, seed: int) -> Fill:
    form, arguments = settings.init
    if form == "constant":
        return constant_rows(arguments[0], settings.dim)
    low, high = arguments
    key = parameter_key(seed, settings.name)
    return drawn_rows(form, (low, high), key, settings.dim)


def _filters(settings: Settings) -> Array:
    if not isinstance(settings.admit, Bloom):
        return np.empty((0, 0), np.uint8)
    blocks = max(1, settings.admit.nbytes // settings.partitions // admission.BLOCK)
    return np.zeros((settings.partitions, blocks * admission.BLOCK), np.uint8)


def _reserve_state(
    settings: Settings,
    dtype: np.dtype[Any],
    columns: int,
    *,
    has_scalar: bool,
    counts_updates: bool,
    nbytes: int,
) -> State:
    """Reserve the arrays of a table that may use `nbytes` bytes."""
    stride = row_length(columns, dtype.itemsize)
    has_times = settings.forget.unseen_seconds is not None
    has_scores = settings.score is not None
    per_row = stride * dtype.itemsize + 16
    chunks = max(nbytes // (per_row * CHUNK), settings.partitions) + settings.partitions
    rows = chunks * CHUNK
    partitions = np.zeros(settings.partitions, PARTITION)
    for name in ("free", "chunk"):
        partitions[name] = NONE
    return State(
        partitions=partitions,
        # Partitions that grow leave their old slots: a geometric series.
        slots=reserve((4 * max(nbytes // 16, 64 * settings.partitions), 2), np.uint64),
        values=reserve((rows, stride), dtype),
        meta=reserve((rows, 2), np.uint64),
        scalars=reserve((rows if has_scalar else 0,), dtype),
        updates=reserve((rows if counts_updates else 0,), np.uint32),
        times=reserve((rows if has_times else 0,), np.uint32),
        scores=reserve((rows if has_scores else 0,), np.float32),
        chunk_before=reserve((chunks,), np.int64),
        chunks=np.zeros(1, np.int64),
    )
