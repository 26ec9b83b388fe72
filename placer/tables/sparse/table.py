"""A sparse table: the rows of a parameter by key, in host memory.

The rows for all keys of a batch are found, created and updated together. A push can change
rows; a pull never does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np
from msgspec.structs import replace

from placer.errors import RunError
from placer.plan.settings.sparse.table import Always, Bloom, Score
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.system.memory.limit import available_nbytes
from placer.tables.initial.draws import parameter_key
from placer.tables.sparse.admission_loops import keep_counters
from placer.tables.sparse.admission_rule import AdmissionRule
from placer.tables.sparse.capacity import rows_to_trim, shares_of
from placer.tables.sparse.checks import (
    check_array,
    check_keys,
    check_partitions,
    check_saved,
    describe_not_finite,
    find_not_finite,
)
from placer.tables.sparse.forgetting import (
    Limits,
    drop_rows,
    find_forgotten,
    forget_entries,
    list_rows,
    partitions_of_step,
)
from placer.tables.sparse.found_rows import FoundRows, find_again
from placer.tables.sparse.hashing import U64
from placer.tables.sparse.index import count_keys, find_rows, set_words
from placer.tables.sparse.initial_rows import Fill, constant_rows, drawn_rows
from placer.tables.sparse.loading import (
    Layout,
    completed,
    date_rows,
    first_score,
    put_rows,
    saved_of_keys,
    without_state,
)
from placer.tables.sparse.memory import MemoryBudget
from placer.tables.sparse.partition_arrays import arrays_of, saved_layout
from placer.tables.sparse.removed import Removed, RemovedKeys
from placer.tables.sparse.row_rule import RowRule
from placer.tables.sparse.rows import begin_rows, compile_gather, note_seen, take_rows
from placer.tables.sparse.saving import PATIENCE, TableSave
from placer.tables.sparse.state import ABSENT, Array
from placer.tables.sparse.statistics import TableStatistics
from placer.tables.sparse.storage import Followed, Storage

_COUNTERS = (
    "admitted",
    "refused",
    "forgotten",
    "evicted",
    "not_finite",
    "hits",
    "lookups",
)
_SMALL = 1 << 24
"""The memory in bytes of a temporary table that is used to compile functions."""


NOT_FINITE_HINT = (
    "find the first op with NaN with --debug-nans; try a lower learning rate or train.clip;"
    " or set train.nan: warn to drop such gradients and continue"
)


@dataclass(frozen=True, slots=True)
class Pushed:
    """The counts of a push.

    Attributes:
        updated: the number of updated rows.
        admitted: the number of keys that were given a row.
        refused: the number of keys that were not given a row.
        evicted: the number of rows dropped because the table exceeded its capacity.
        not_finite: the number of gradients dropped because they were not finite.
    """

    updated: int
    admitted: int
    refused: int
    evicted: int
    not_finite: int = 0


@dataclass(frozen=True, slots=True)
class Update:
    """The gradients of a table in a push.

    Attributes:
        gradients: the gradient of each key, of shape [n, dim].
        learning_rate: the learning rate.
        scale: a factor for the gradients.
    """

    gradients: Array
    learning_rate: float
    scale: float = 1.0


def push_together(
    tables: Sequence[SparseTable],
    keys: Array,
    updates: Sequence[Update],
    *,
    step: int,
    occurrences: Array | None = None,
    scores: Array | None = None,
    times: Array | None = None,
    draw: int | None = None,
    drop_not_finite: bool = False,
    where: str = "",
) -> list[Pushed]:
    """Push to all tables that share an index, the owner first; see `SparseTable.push`.

    Gradients that are not finite are dropped for their table only.
    """
    owner = tables[0]
    assert tables is owner.group or [*tables] == owner.group, (
        "all tables of an index are pushed together"
    )
    keys, counts, sums, seconds = owner._checked(keys, occurrences, scores, times)
    dropped = [
        table._find_dropped(keys, update, where, drops=drop_not_finite)
        for table, update in zip(tables, updates, strict=True)
    ]
    draw = step if draw is None else draw
    found = owner._count(keys, counts, sums, seconds, step, draw)
    return [
        table._update(*found, update, bad)
        for table, update, bad in zip(tables, updates, dropped, strict=True)
    ]


class SparseTable:
    """The rows of a sparse table for the keys of some partitions.

    Only one thread at a time may use a table. Another thread may read the result of
    `begin_save` at the same time.

    Args:
        dtype: the dtype of values, slots and gradients: float32 or float64.
        memory: bytes that the table may use, or the budget of several tables. By default
            the free memory of the machine.
        held: the partitions that the table holds; by default all.
        index_of: a table without rows whose index this one shares (`shares_index`). Both are
            pushed together, by `push_together`.

    Attributes:
        dtype: the dtype of values, slots and gradients.
        held: the partitions that the table holds.

    Raises:
        RunError: if the memory is too small for a table without rows.
        ValueError: if the number of partitions is not a power of two from 2 to 2¹⁶.
    """

    def __init__(
        self,
        settings: Settings,
        seed: int,
        dtype: str = "float32",
        memory: int | MemoryBudget | None = None,
        held: range | None = None,
        index_of: SparseTable | None = None,
    ) -> None:
        check_partitions(settings.name, settings.partitions)
        self.settings, self._seed, self._memory = settings, seed, memory
        self.dtype = np.dtype(dtype)
        self.held = range(settings.partitions) if held is None else held
        self._done = dict.fromkeys(_COUNTERS, 0)
        if not isinstance(memory, MemoryBudget):
            memory = MemoryBudget(available_nbytes() if memory is None else memory)
        self._rule = RowRule(settings, dtype)
        self._owner: SparseTable = index_of or self
        self._group: list[SparseTable] = [self]
        self._lock = threading.RLock()
        self._dropped = np.zeros(settings.partitions, np.int64)
        if index_of is None:
            self._storage = Storage(
                settings, self.dtype, self._rule, memory, len(self.held)
            )
        else:
            self._group, self._dropped = index_of._group, index_of._dropped
            self._group.append(self)
            self._storage = Followed(
                settings, self.dtype, self._rule, memory, index_of._storage
            )
        self._gather = compile_gather(settings.dim, dtype)
        self._fill = _initial_rows(settings, seed)
        self._admission = AdmissionRule(settings, seed)
        self._limits = Limits.of(
            settings.forget,
            settings.score,
            scored=isinstance(settings.admit, Score),
        )
        self._save: TableSave | None = None
        self._has_undated = False
        self._shares = None if settings.capacity is None else shares_of(settings)
        self._removed: RemovedKeys | None = None

    @property
    def group(self) -> Sequence[SparseTable]:
        """The tables that share an index, the owner first; only this one if it shares none."""
        return self._group

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._storage.state.partitions["rows"].sum())

    @property
    def nbytes(self) -> int:
        """The memory of rows, slots, the index, filters and a running save, in bytes."""
        return self._storage.nbytes

    @property
    def budget(self) -> MemoryBudget:
        """The memory that the table may use."""
        return self._storage.budget

    @property
    def lasting_nbytes(self) -> int:
        """The memory without the part that a running save uses, in bytes."""
        return self._storage.lasting_nbytes

    @property
    def growth_nbytes(self) -> float:
        """An estimate of the bytes that the table will still need until it has its capacity;
        infinite without a capacity."""
        if self._shares is None:
            return inf
        left = self._shares - self._storage.state.partitions["rows"]
        held = left[self.held.start : self.held.stop]
        return int(held.clip(0).sum()) * self._storage.row_nbytes

    @property
    def latest(self) -> int:
        """The latest time that was noted, in seconds; 0 if no time was noted."""
        return self._storage.latest

    def note_time(self, second: int) -> None:
        """Note the time of the training data, in seconds. Keys are forgotten relative to the latest
        noted time, which is saved with the rows.
        """
        owner = self._owner
        if owner._has_undated and second > 0:
            date_rows(owner._storage.state, second)
            owner._has_undated = False
        owner._storage.latest = max(owner._storage.latest, second)

    def statistics(self) -> TableStatistics:
        """Return the size of the table and its counts so far."""
        partitions = self._storage.state.partitions
        return TableStatistics(
            rows=self.rows,
            counted=int((partitions["entries"] - partitions["rows"]).sum()),
            nbytes=self.nbytes,
            limit=self.budget.total,
            **self._done,
        )

    def warm_up(self, *, trains: bool = True, saves: bool = True) -> None:
        """Compile the loops for pulls, and also for pushes (`trains`) and `saves`."""
        settings = self.settings
        if isinstance(settings.admit, Bloom):  # small filters are enough
            settings = replace(settings, admit=Bloom(settings.admit.n, nbytes=0))
        memory = _SMALL + 8 * self._storage.least_nbytes
        empty = SparseTable(settings, 0, self.dtype.name, memory)
        key = np.zeros(1, np.uint64)

        def push(step: int) -> None:
            empty.push(
                key,
                np.zeros((1, self.settings.dim), self.dtype),
                learning_rate=0.0,
                step=step,
                occurrences=np.full(1, 2**32 - 1, np.uint32),
                scores=np.full(1, np.inf, np.float32),
            )

        empty.pull(key, found=empty.find(key))
        if trains:
            push(0)  # admits the key
            empty.shrink(0)
        if saves:
            with empty.begin_save(memory // 2) as save:
                if trains:
                    push(1)
                    empty.shrink(1)
                for _ in save.partitions():
                    pass

    def find(self, keys: Array) -> FoundRows:
        """Find the rows of keys now, for a later `pull`.

        Args:
            keys: uint64[n].

        Raises:
            RunError: if the keys are not 64-bit integers, or do not belong to the
                partitions of this table.
        """
        keys = check_keys(self.settings.name, keys)
        return FoundRows(self._find(keys), self._dropped.copy())

    def pull(
        self,
        keys: Array,
        out: Array | None = None,
        found: FoundRows | None = None,
    ) -> Array:
        """Return the values of keys.

        If all keys are admitted, a key without a row reads the initial values of its row.
        Otherwise it reads the default value.

        Args:
            keys: uint64[n].
            out: the array to write to, of shape [n, dim] and the table's dtype.
            found: the result of `find` for these keys, even if the table has changed since.
                It can be used only once.

        Returns:
            `out`, or a new array.

        Raises:
            RunError: if the keys are not 64-bit integers, do not belong to the partitions
                of this table, or `out` does not fit.
        """
        keys = check_keys(self.settings.name, keys)
        if out is None:
            out = np.empty((keys.size, self.settings.dim), self.dtype)
        self._check("the result", out, (keys.size, self.settings.dim), self.dtype)
        rows = self._find(keys) if found is None else self._find_again(keys, found)
        self._done["lookups"] += keys.size
        self._done["hits"] += int(np.count_nonzero(rows >= 0))
        default = self.dtype.type(self.settings.default)
        self._gather(self._storage.state.values, rows, default, out)
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
        draw: int | None = None,
        drop_not_finite: bool = False,
        where: str = "",
    ) -> Pushed:
        """Count and admit keys, and update the rows of keys that have rows.

        A push that admits a key creates its row. Unless all keys are admitted, this push
        drops the key's gradient.

        Args:
            keys: distinct keys, uint64[n].
            gradients: the gradient of each key, of shape [n, dim] and the table's dtype.
            step: the step of the table. It never decreases.
            occurrences: how often each key occurred, uint32[n], at least 1; by default 1.
            scores: the increase of each key's score, float32[n]; by default 0.
            times: when each key was seen, in seconds, of shape [n]; by default 0.
            scale: a factor for the gradients.
            draw: a different number for each push, for admission by chance; by default the
                step.
            drop_not_finite: if true, gradients with a NaN or an infinity are dropped and
                their keys are only counted. If false, they are an error. If the scale is not
                finite, all gradients count as not finite.
            where: a text about the gradients for messages, such as `in step 3`.

        Returns:
            The counts of this push.

        Raises:
            RunError: if arrays do not fit, keys do not belong to the partitions of this
                table, gradients are not finite, or the memory is not enough. The table has
                not changed then.
        """
        update = Update(gradients, learning_rate, scale)
        (pushed,) = push_together(
            [self],
            keys,
            [update],
            step=step,
            occurrences=occurrences,
            scores=scores,
            times=times,
            draw=draw,
            drop_not_finite=drop_not_finite,
            where=where,
        )
        return pushed

    def _checked(
        self,
        keys: Array,
        occurrences: Array | None,
        scores: Array | None,
        times: Array | None,
    ) -> tuple[Array, Array, Array, Array]:
        """Return the keys, and the counts, scores and seconds of a push."""
        keys, count = check_keys(self.settings.name, keys), keys.size
        if occurrences is None:
            occurrences = np.ones(count, np.uint32)
        if scores is None:
            scores = np.zeros(count, np.float32)
        self._check("occurrences", occurrences, (count,), np.dtype(np.uint32))
        self._check("scores", scores, (count,), np.dtype(np.float32))
        if not occurrences.all():
            raise RunError(f"table {self.settings.name}: a key occurs 0 times")
        seconds = np.zeros(count) if times is None else np.asarray(times)
        self._check("times", seconds, (count,), seconds.dtype)
        seconds = np.floor(seconds).astype(np.int64).astype(np.uint32)
        counts, sums = occurrences.astype(np.int64), scores.astype(np.float32)
        return keys, counts, sums, seconds

    def _find_dropped(
        self, keys: Array, update: Update, where: str, *, drops: bool
    ) -> Array | None:
        """Check an update; return the keys whose gradients are dropped (bool[n]), if any."""
        shape = keys.size, self.settings.dim
        self._check("gradients", update.gradients, shape, self.dtype)
        bad = self.find_not_finite(
            keys, update.gradients, drop_not_finite=drops, where=where
        )
        if isfinite(update.scale):
            return bad
        if not drops:
            raise RunError(
                f"table {self.settings.name}: the factor for the gradients is"
                f" {update.scale}{where and f' {where}'}, because a norm is not finite",
                hint=NOT_FINITE_HINT,
            )
        return np.ones(keys.size, np.bool_)

    def _count(
        self,
        keys: Array,
        counts: Array,
        scores: Array,
        seconds: Array,
        step: int,
        draw: int,
    ) -> tuple[Array, Array, Array]:
        """Count and admit keys. Return the rows of all keys, those of keys that had rows, and
        the admitted keys (bool[n])."""
        seen = seconds
        if self._limits.by_steps:
            seen = np.full(keys.size, step & 0xFFFFFFFF, np.uint32)
        state, rows = self._storage.state, self._find(keys)
        before = rows.copy()
        with ExitStack() as contexts:
            for table in self._group:
                contexts.enter_context(table._keeping(keys, rows))
            new = self._admit(keys, rows, counts, scores, seen, draw)
        note_seen(state, rows, counts, scores, seconds, np.int64(step))
        return rows, before, new

    def _update(
        self,
        rows: Array,
        before: Array,
        new: Array,
        update: Update,
        bad: Array | None,
    ) -> Pushed:
        """Update the rows of a push, and note its counts."""
        updated = rows if isinstance(self.settings.admit, Always) else before
        if bad is not None:
            updated = np.where(bad, np.int64(ABSENT), updated)
        self._rule.update(
            self._storage.state,
            updated,
            update.gradients,
            update.learning_rate,
            update.scale,
        )
        admitted = int(np.count_nonzero(new))
        pushed = Pushed(
            updated=int(np.count_nonzero(updated >= 0)),
            admitted=admitted,
            refused=int(np.count_nonzero(before < 0)) - admitted,
            evicted=self._trim(),
            not_finite=0 if bad is None else int(np.count_nonzero(bad)),
        )
        for name in ("admitted", "refused", "evicted", "not_finite"):
            self._done[name] += getattr(pushed, name)
        return pushed

    def find_not_finite(
        self,
        keys: Array,
        gradients: Array,
        *,
        drop_not_finite: bool = False,
        where: str = "",
    ) -> Array | None:
        """Find gradients with a NaN or an infinity: bool[n], or None if all are finite.

        Raises RunError if such gradients exist, unless `drop_not_finite`. The message contains the
        text `where`, such as `in step 3`.
        """
        bad = find_not_finite(gradients)
        if bad is not None and not drop_not_finite:
            text = describe_not_finite(keys, bad, where)
            raise RunError(f"table {self.settings.name}: {text}", hint=NOT_FINITE_HINT)
        return bad

    def forget(self, step: int, now: float = 0.0) -> int:
        """Forget keys in the partitions that the sweep visits in this step. With
        `every: pass` it visits none.

        Args:
            now: the latest time of the training data, in seconds.

        Returns:
            The number of forgotten rows.
        """
        every, partitions = self.settings.forget.every, self.settings.partitions
        if every == "pass":
            return 0
        return self._forget(partitions_of_step(step, every, partitions), step, now)

    def end_pass(self, step: int) -> int:
        """Sweep all partitions at once if `forget.every` is `pass`; see `forget`.

        Call it after the last step of a pass of a stream, before the table is saved.
        """
        if self.settings.forget.every != "pass":
            return 0
        return self.shrink(step, self.latest)

    def shrink(self, step: int, now: float = 0.0) -> int:
        """Sweep all partitions at once; see `forget`."""
        return self._forget(self.held, step, now)

    def record_removed(self) -> None:
        """Begin to record the keys whose rows are removed, for `take_removed`."""
        self._removed = RemovedKeys()

    @property
    def has_too_many_removed(self) -> bool:
        """Whether more than an eighth of the rows were removed since `take_removed`."""
        return self._removed is not None and self._removed.is_too_many

    def take_removed(self) -> Removed:
        """Return the keys that were removed since the last call and have no row now.

        Raises RunError if `record_removed` was not called.
        """
        if self._removed is None:
            raise RunError(f"table {self.settings.name}: it records no removed keys")
        taken = self._removed.take()
        self._storage.removed = 0
        absent = self._find(taken.keys) < 0
        return taken._replace(keys=taken.keys[absent])

    def begin_save(
        self,
        memory: int | None = None,
        patience: float = PATIENCE,
        *,
        since: int | None = None,
        values_only: bool = False,
    ) -> TableSave:
        """Begin a save of the partitions as they are now.

        Another thread can read the save while this thread continues to use the table.

        Args:
            memory: bytes that the save may use. By default an eighth of the table's memory
                and at least 4 MiB, if this much is left.
            patience: when the memory of the save is used up, a change of the table waits
                for the reader for this many seconds. Then the save is given up.
            since: only rows that were seen in this step or later are saved. It needs
                `values_only`.
            values_only: whether only keys and values are saved.

        Raises:
            RunError: if another save of the table is not closed yet, or the memory of the
                table is not enough.
            ValueError: if `since` is given without `values_only`.
        """
        if since is not None and not values_only:
            raise ValueError("'since' needs 'values_only'")
        if self._save is not None:
            raise RunError(f"table {self.settings.name}: another save is still running")
        if memory is None:
            memory = min(max(self.nbytes // 8, 4 << 20), self._storage.bytes_left)
        self._save = TableSave(
            self._storage,
            self.held,
            memory,
            has_words=self._admission.counts and not values_only,
            dim=self.settings.dim if values_only else None,
            since=since,
            ended=self._end_save,
            lock=self._owner._lock,
            patience=patience,
        )
        return self._save

    def _end_save(self) -> None:
        self._save = None

    def save_partition(self, partition: int) -> dict[str, Array]:
        """Return the contents of a partition as arrays by name.

        Returns:
            For each row: `keys` (uint64), `values` including slots, `seen` and `count`
            (uint32), and, if the table has them, `scalars`, `updates`, `times` and
            `scores`. For each key without a row: `entry_keys` and `entry_words` (uint64).
            For a Bloom filter: its counters `filter` (uint8). For a table with times: the
            `latest` time (int64[1]).
        """
        storage = self._storage
        return arrays_of(storage.state, storage.filters, partition, storage.latest)

    def load_partition(
        self, partition: int, saved: Mapping[str, Array], *, has_state: bool = True
    ) -> None:
        """Load the arrays of `save_partition` into an empty partition.

        The saved table may have used other methods of admission and forgetting. Arrays that
        this table does not need are ignored. Missing scores start with the score of one
        occurrence, and at least the score for admission. Missing times start with the first
        noted time. Missing Bloom filters start empty.

        Args:
            saved: the arrays.
            has_state: whether the slots belong to this table's rule. If not, the state of
                the optimizer starts anew.

        Raises:
            RunError: if the table does not hold the partition, the partition is not empty,
                the arrays do not fit, or the table is being saved.
        """
        storage, name = self._storage, self.settings.name
        state = storage.state
        if self._owner is not self:
            self._load_values_of(partition, saved, has_state=has_state)
            return
        self._check_begins(partition)
        layout: Layout = saved_layout(state, storage.filters, 0, 0)
        if not has_state:
            saved, layout = without_state(saved, layout, self.settings.dim)
        self._has_undated |= "times" in layout and "times" not in saved
        saved = completed(saved, layout, first_score(self.settings))
        check_saved(name, partition, saved, layout, storage.bits)
        keys, entry_keys = saved["keys"], saved["entry_keys"]
        if not self._admission.counts:  # this table does not count keys without a row
            entry_keys = entry_keys[:0]
        both = np.concatenate([keys, entry_keys])
        rows = np.full(both.size, ABSENT, np.int64)
        words = np.concatenate(
            [np.zeros_like(keys), saved["entry_words"][: entry_keys.size]]
        )
        self._begin(both, rows, np.arange(both.size) < keys.size, words)
        put_rows(state, rows[: keys.size], saved)
        if storage.filters.size:
            storage.filters[partition] = saved["filter"]
        if "latest" in saved:
            self.note_time(int(saved["latest"][0]))

    def has_keys_of(self, partition: int, saved: Mapping[str, Array]) -> bool:
        """Whether a table that shares an index can load a partition: the index has just the saved
        keys, with the same counts."""
        if self._owner is self:
            return True
        storage = self._storage
        layout: Layout = saved_layout(storage.state, storage.filters, 0, 0)
        both = [
            self._owner.save_partition(partition),
            completed(saved, layout, first_score(self.settings)),
        ]
        if not self._admission.counts:
            both[1] |= dict.fromkeys(
                ("entry_keys", "entry_words"), both[0]["entry_keys"]
            )
        rows, entries = (
            [np.argsort(each[name]) for each in both] for name in ("keys", "entry_keys")
        )
        for name in layout.keys() - {"values", "scalars", "updates"}:
            own, other = (each[name] for each in both)
            if own.shape != other.shape:
                return False
            if name not in ("filter", "latest"):
                order = entries if name.startswith("entry") else rows
                own, other = own[order[0]], other[order[1]]
            if not np.array_equal(own, other):
                return False
        return True

    def _load_values_of(
        self, partition: int, saved: Mapping[str, Array], *, has_state: bool
    ) -> None:
        """Load the values of the rows that the owner of the index has loaded."""
        storage, name = self._storage, self.settings.name
        layout: Layout = saved_layout(storage.state, storage.filters, 0, 0)
        if not has_state:
            saved, layout = without_state(saved, layout, self.settings.dim)
        saved = completed(saved, layout, first_score(self.settings))
        check_saved(name, partition, saved, layout, storage.bits)
        rows, values = self._find(saved["keys"]), saved["values"]
        assert (rows >= 0).all(), "`has_keys_of` was not asked"
        storage.state.values[rows, : values.shape[1]] = values
        for array in ("scalars", "updates"):
            if array in saved:
                getattr(storage.state, array)[rows] = saved[array]

    def load_values(
        self,
        partition: int,
        keys: Array,
        values: Array,
        scores: Array | None = None,
    ) -> None:
        """Load rows with these values into an empty partition.

        Slots start anew, and each key counts as if it had occurred once before step 1.

        Args:
            keys: the keys of the rows, uint64[n].
            values: the values, of shape [n, dim] and the table's dtype.
            scores: the scores, float32[n], if known.

        Raises:
            RunError: if the table does not hold the partition, the partition is not empty,
                the arrays do not fit, or the table is being saved.
        """
        saved = self.arrays_of_values(keys, values, scores)
        self.load_partition(partition, saved, has_state=False)

    def arrays_of_values(
        self, keys: Array, values: Array, scores: Array | None
    ) -> dict[str, Array]:
        """Return the arrays of a partition with these rows; see `load_values`."""
        known = {} if scores is None else {"scores": scores}
        return saved_of_keys(keys, values) | known

    def separated(self, before: int) -> SparseTable:
        """Return the table with an index of its own, and the rows of the partitions before one.
        This table, and the index of the other one, can then not be used together any more."""
        alone = self.emptied()
        for partition in self.held:
            if partition < before:
                alone.load_partition(partition, self.save_partition(partition))
        self._group.remove(self)
        of = self._owner._storage
        of.followers = [each for each in of.followers if each is not self._storage]
        return alone

    def _check_begins(self, partition: int) -> None:
        name = self.settings.name
        if self._save is not None:
            raise RunError(f"table {name}: it cannot be loaded during a save")
        if partition not in self.held:
            raise RunError(f"table {name}: it does not hold partition {partition}")
        if self._storage.state.partitions[partition]["entries"]:
            raise RunError(f"table {name}, partition {partition}: it is not empty")

    def emptied(self, index_of: SparseTable | None = None) -> SparseTable:
        """Return a new table with the same settings and without rows, which may share the index of
        another new table."""
        return SparseTable(
            self.settings,
            self._seed,
            self.dtype.name,
            self._memory,
            self.held,
            index_of,
        )

    def _find(self, keys: Array) -> Array:
        """Return the rows of keys; raise RunError if a key belongs to another partition."""
        storage, held = self._storage, self.held
        rows = np.empty(keys.size, np.int64)
        first, count = U64(held.start), U64(len(held))
        others = find_rows(storage.state, storage.bits, first, count, keys, rows)
        if others:
            raise RunError(
                f"table {self.settings.name}: {others:,} of {keys.size:,} keys do not belong"
                f" to its partitions {held.start} to {held.stop - 1}"
            )
        return rows

    def _find_again(self, keys: Array, found: FoundRows) -> Array:
        changed = self._dropped != found.dropped
        if changed.any() or (found.rows < 0).any():
            storage = self._storage
            find_again(storage.state, storage.bits, keys, found.rows, changed)
        return found.rows

    def _admit(
        self,
        keys: Array,
        rows: Array,
        counts: Array,
        scores: Array,
        seen: Array,
        draw: int,
    ) -> Array:
        """Create rows for admitted keys and count refused keys; return the admitted (bool[n])."""
        storage, admission = self._storage, self._admission
        new, words, estimates = admission.admit(
            storage, keys, rows, counts, scores, seen, draw
        )
        self._begin(keys, rows, new, words)
        for table in self._others:
            if table._save is not None and storage.filters.size:
                kept, filters = table._storage.kept, storage.filters
                keep_counters(kept, storage.bits, keys, rows, filters)
        admission.count_refused(storage, keys, rows, estimates)
        return new

    @property
    def _others(self) -> list[SparseTable]:
        """The tables that share the index of this one."""
        return self._group[1:] if self._group[0] is self else []

    def _begin(self, keys: Array, rows: Array, new: Array, words: Array) -> None:
        if not (new.any() or words.any()):
            return
        storage = self._storage
        state, bits = storage.state, storage.bits
        more_rows = np.zeros(self.settings.partitions, np.int64)
        more_entries = more_rows.copy()
        count_keys(bits, keys, new, more_rows)
        is_new_entry = (rows == ABSENT) & (new | (words != 0))
        count_keys(bits, keys, is_new_entry, more_entries)
        if not storage.make_room(more_rows, more_entries):
            for table in self._group:  # saves may use the missing memory
                if table._save is not None:
                    table._save.wait_for_end()
            if not storage.make_room(more_rows, more_entries):
                raise RunError(
                    f"table {self.settings.name}: {self.rows:,} rows and"
                    f" {more_rows.sum():,} new rows exceed its memory:"
                    f" {storage.budget.describe()}",
                    hint="set a capacity, forget rows, or give the servers more memory",
                )
        take_rows(state, bits, keys, new, rows)
        for table in self._group:
            if table._save is not None:
                table._save.keep_new(keys, rows, new, words)
        begin_rows(state, keys, new, rows, words)
        set_words(state, bits, keys, words)
        created = rows[new]
        for table in self._group:
            table._fill(keys[new], created, table._storage.state.values)
            table._rule.begin(table._storage.state, created)

    def _trim(self) -> int:
        """Drop rows of the partitions above their shares; return their number."""
        if self._shares is None:
            return 0
        partitions, dropped = self._storage.state.partitions, 0
        by_count = self.settings.evict == "lfu"
        over = np.flatnonzero(partitions["rows"] > self._shares)
        for partition in over.tolist():
            rows = self._rows_of(partition)
            share = int(self._shares[partition])
            gone = rows_to_trim(self._storage.state, rows, share, by_count=by_count)
            with self._changing_rows(partition, gone.size):
                self._drop(partition, gone)
            dropped += gone.size
        return dropped

    def _changing_rows(
        self, partition: int, count: int
    ) -> AbstractContextManager[None]:
        return self._changing(lambda pending: (count * int(pending[partition]), 0))

    def _rows_of(self, partition: int) -> Array:
        state = self._storage.state
        rows = np.empty(int(state.partitions[partition]["rows"]), np.int64)
        list_rows(state, partition, rows)
        return rows

    def _drop(self, partition: int, rows: Array) -> None:
        """Drop rows of a partition; the lock of a save is held."""
        storage, keys = self._storage, self._storage.state.meta[rows, 0]
        for table in self._group:
            if table._save is not None:
                table._save.keep(keys, rows)
        drop_rows(storage.state, storage.bits, partition, rows)
        self._dropped[partition] += rows.size
        for table in self._group:
            if table._removed is not None:
                table._removed.add(keys, self.rows)
                table._storage.removed = table._removed.nbytes

    def _forget(self, partitions: Iterable[int], step: int, now: float) -> int:
        if not self._limits.is_active or self._owner is not self:
            return 0  # the owner of the index forgets for all
        forgotten = sum(self._forget_of(each, step, now) for each in partitions)
        for table in self._group:
            table._done["forgotten"] += forgotten
        return forgotten

    def _forget_of(self, partition: int, step: int, now: float) -> int:
        storage = self._storage
        own = storage.state.partitions[partition]

        def needed(pending: Array) -> tuple[int, int]:
            rows, entries = int(own["rows"]), int(own["entries"])
            # Each entry may change twice: its score decays, and then it is deleted.
            return (rows, 2 * (entries - rows)) if pending[partition] else (0, 0)

        state, bits, limits = storage.state, storage.bits, self._limits
        with self._changing(needed):
            rows = self._rows_of(partition)
            for table in self._group:
                if limits.decay != 1 and table._save is not None:
                    table._save.keep(state.meta[rows, 0], rows)
            seconds = np.int64(np.floor(now))
            dim = np.int64(self.settings.dim)
            count = find_forgotten(state, rows, np.int64(step), seconds, limits, dim)
            self._drop(partition, rows[:count])
            for table in self._others:
                if table._save is not None:
                    table._save.keep_entries(partition)
            if self._admission.counts:
                forget_entries(
                    state,
                    storage.kept,
                    bits,
                    np.int64(partition),
                    np.int64(step),
                    seconds,
                    limits,
                )
        return int(count)

    def _keeping(self, keys: Array, rows: Array) -> AbstractContextManager[None]:
        return nullcontext() if self._save is None else self._save.keeping(keys, rows)

    @contextmanager
    def _changing(self, needed: Callable[[Array], tuple[int, int]]) -> Iterator[None]:
        with ExitStack() as contexts:
            for table in self._group:
                if table._save is not None:
                    contexts.enter_context(table._save.changing(needed))
            yield

    def _check(
        self, what: str, array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        check_array(self.settings.name, what, array, shape, dtype)


def _initial_rows(settings: Settings, seed: int) -> Fill:
    form, arguments = settings.init
    if form == "constant":
        return constant_rows(arguments[0], settings.dim)
    low, high = arguments
    key = parameter_key(seed, settings.name)
    return drawn_rows(form, (low, high), key, settings.dim)
