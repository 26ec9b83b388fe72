"""Collects the distinct sparse-table keys of a batch.

Keys are inputs, so the keys of the next step can be collected one step ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from placer.channel.interface import Array
from placer.plan.plan import Edge, SparseTable
from placer.plan.settings.sparse.table import COUNTED_INPUTS, Scoring
from placer.runtime.node.position import Position
from placer.tables.key_sums import Statistic
from placer.tables.sparse.batch_keys import BatchKeys, collect_keys
from placer.tables.sparse.checks import check_scores, check_times


@dataclass(frozen=True, slots=True)
class _Form:
    """The arguments of a call of `collect`: number of key arrays, padding, and the tables and
    names of what is `read` besides."""

    ids: int
    padding: tuple[int | None, ...]
    read: Sequence[tuple[str, str]]


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
    _forms: dict[tuple[str, ...], _Form] = field(default_factory=dict, init=False)
    """The arguments of the first training call, by tables."""
    _ahead: dict[tuple[str, ...], _Ahead] = field(default_factory=dict, init=False)
    """The keys that were collected ahead, by tables."""

    def collect(
        self,
        tables: tuple[str, ...],
        ids: Sequence[Any],
        padding: tuple[int | None, ...] = (),
        read: Mapping[tuple[str, str], Any] = MappingProxyType({}),
    ) -> tuple[Any, ...]:
        """Return the distinct keys of a batch, and the positions of each array. `read` has the
        `show`, `click` and `time` of tables, by table and name. See `Node.distinct_keys`."""
        position = self.position
        if not position.evaluation:
            ahead = self._ahead.pop(tables, None)
            if ahead is not None and ahead.step == position.step:
                self._without_size.append(ahead.keys)
                return ahead.keys, *ahead.positions
            # Keys are sent ahead for inputs. Their lookup runs before those of computed keys.
            self._forms.setdefault(tables, _Form(len(ids), padding, tuple(read)))
        keys, positions = self._collect(tables, ids, padding, read)
        self._without_size.append(keys)
        return keys, *positions

    def collect_ahead(
        self, edge: Edge, next_rows: Callable[[str], Array]
    ) -> list[BatchKeys]:
        """Return the keys that an edge carries in the next step, and keep them for
        `collect`. `next_rows` returns the next step's rows of an input."""
        found = []
        for value in edge.values:
            form = self._forms[value.tables]
            rows = {name: next_rows(name) for name in dict.fromkeys(value.inputs)}
            arrays = [rows[name] for name in value.inputs]
            ids, rest = arrays[: form.ids], arrays[form.ids :]
            read = dict(zip(form.read, rest, strict=True))
            keys, positions = self._collect(value.tables, ids, form.padding, read)
            self._ahead[value.tables] = _Ahead(self.position.step + 1, keys, positions)
            found.append(keys)
        return found

    def _collect(
        self,
        tables: tuple[str, ...],
        ids: Sequence[Any],
        padding: tuple[int | None, ...],
        read: Mapping[tuple[str, str], Any],
    ) -> tuple[BatchKeys, list[Array]]:
        planned = self.tables[tables[0]]
        holders, partitions = len(planned.holders), planned.settings.partitions
        arrays = [np.asarray(each) for each in ids]
        of_rows = self._statistics(tables, read)
        return collect_keys(arrays, holders, partitions, padding, of_rows, tables)

    def _statistics(
        self, tables: tuple[str, ...], read: Mapping[tuple[str, str], Any]
    ) -> list[Statistic]:
        """Return the scores and the times of the rows of a batch. Tables with the same inputs,
        and for scores the same weights, share them."""
        found: dict[Hashable, Statistic] = {}
        for table in tables:
            show, click, time = (read.get((table, name)) for name in COUNTED_INPUTS)
            scoring = self.tables[table].settings.score
            made: list[tuple[Hashable, Callable[[], Statistic]]] = []
            if scoring is not None and not (show is None and click is None):
                weights: Hashable = scoring.no_click, scoring.click, id(show), id(click)
                made.append((weights, partial(_scores, table, scoring, show, click)))
            if time is not None:
                made.append((("time", id(time)), partial(_times, table, time)))
            for key, make in made:
                known = found.get(key) or make()
                found[key] = known._replace(tables=(*known.tables, table))
        return [*found.values()]

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


def _scores(table: str, scoring: Scoring, show: Any, click: Any) -> Statistic:
    """Return the score that each row of a batch adds to its keys."""
    shows = np.asarray(1 if show is None else show, np.float32).reshape(-1)
    clicks = np.asarray(0 if click is None else click, np.float32).reshape(-1)
    scores = (shows - clicks) * scoring.no_click + clicks * scoring.click
    check_scores(table, scores)
    return Statistic("scores", (), scores)


def _times(table: str, time: Any) -> Statistic:
    """Return the time of each row of a batch, in seconds."""
    times = np.asarray(time).reshape(-1)
    check_times(table, times)
    return Statistic("times", (), times)
