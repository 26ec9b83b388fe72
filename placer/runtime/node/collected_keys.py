"""Collects the distinct sparse-table keys of a batch.

Keys are inputs, so the keys of the next step can be collected one step ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placer.channel.interface import Array
from placer.plan.plan import Edge, SparseTable
from placer.runtime.node.position import Position
from placer.tables.sparse.batch_keys import BatchKeys, collect_keys
from placer.tables.sparse.checks import check_scores, check_times


@dataclass(frozen=True, slots=True)
class _Form:
    """The arguments of a call of `collect`: number of key arrays, padding, names of `stats`."""

    ids: int
    padding: tuple[int | None, ...]
    stats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Keys collected ahead for a later step, with their positions."""

    step: int
    keys: BatchKeys
    positions: Sequence[Array]


@dataclass(slots=True)
class CollectedKeys:
    """Collects the keys that a node looks up.

    Attributes:
        tables: the sparse tables of the plan, by name.
        position: the current step and batch of the node.
        forced_size: the index of the padded size to use in the warm-up; None otherwise.
        most_sizes: the largest number of padded sizes seen so far.
    """

    tables: Mapping[str, SparseTable]
    position: Position
    forced_size: int | None = None
    most_sizes: int = field(default=1, init=False)
    _without_size: list[BatchKeys] = field(default_factory=list, init=False)
    _forms: dict[str, _Form] = field(default_factory=dict, init=False)
    """The arguments of the last training call, by table."""
    _ahead: dict[str, _Ahead] = field(default_factory=dict, init=False)
    """The keys that were collected ahead, by table."""

    def collect(
        self,
        table: str,
        ids: Sequence[Any],
        padding: tuple[int | None, ...] = (),
        **stats: Any,
    ) -> tuple[Any, ...]:
        """Return the distinct keys of a batch, and the positions of each array. `stats`
        are the given arrays among `show`, `click` and `time`. See
        `Node.distinct_keys`."""
        position = self.position
        if not position.evaluation:
            ahead = self._ahead.pop(table, None)
            if ahead is not None and ahead.step == position.step:
                self._without_size.append(ahead.keys)
                return ahead.keys, *ahead.positions
            self._forms[table] = _Form(len(ids), padding, tuple(stats))
        keys, positions = self._collect(table, ids, padding, **stats)
        self._without_size.append(keys)
        return keys, *positions

    def collect_ahead(
        self, edge: Edge, next_rows: Callable[[str], Array]
    ) -> list[BatchKeys]:
        """Return the keys that an edge carries in the next step, and keep them for
        `collect`. `next_rows` returns the next step's rows of an input."""
        found = []
        for value in edge.values:
            table = str(value.table)
            form = self._forms[table]
            arrays = [next_rows(name) for name in value.inputs]
            ids, rest = arrays[: form.ids], arrays[form.ids :]
            stats = dict(zip(form.stats, rest, strict=True))
            keys, positions = self._collect(table, ids, form.padding, **stats)
            self._ahead[table] = _Ahead(self.position.step + 1, keys, positions)
            found.append(keys)
        return found

    def _collect(
        self,
        table: str,
        ids: Sequence[Any],
        padding: tuple[int | None, ...],
        show: Any = None,
        click: Any = None,
        time: Any = None,
    ) -> tuple[BatchKeys, list[Array]]:
        planned = self.tables[table]
        arrays = [np.asarray(each) for each in ids]
        holders, partitions = len(planned.holders), planned.settings.partitions
        scoring, scores = planned.settings.score, None
        if scoring is not None and not (show is None and click is None):
            shows = np.asarray(1 if show is None else show, np.float32).reshape(-1)
            clicks = np.asarray(0 if click is None else click, np.float32).reshape(-1)
            scores = (shows - clicks) * scoring.no_click + clicks * scoring.click
            check_scores(table, scores)
        times = None if time is None else np.asarray(time).reshape(-1)
        if times is not None:
            check_times(table, times)
        keys, positions = collect_keys(
            arrays, holders, partitions, padding, scores, times
        )
        keys.table = table
        return keys, positions

    def choose_sizes(self) -> None:
        """Pad the most recently collected keys of all tables to sizes with the same
        index. A function that uses several tables is compiled for each combination of
        sizes; this keeps the number of combinations small."""
        if not self._without_size:
            return
        number = self.forced_size
        if number is None:
            number = max(each.least_size for each in self._without_size)
        for each in self._without_size:
            each.choose_size(number)
            self.most_sizes = max(self.most_sizes, len(each.sizes))
        self._without_size.clear()
