"""Tables over the same keys, on a node that holds them.

All that a node does for the keys of a message, it does here for all their tables: it finds the
rows, reads them, and updates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placer.channel.interface import Array
from placer.tables.key_sums import KeyPart, KeySums
from placer.tables.sparse.found_rows import FoundRows
from placer.tables.sparse.table import Pushed, SparseTable, Update, push_together


@dataclass(frozen=True, slots=True)
class RowUpdate:
    """The update of the rows of one table.

    Attributes:
        total: the sum of the gradients of each key.
        learning_rate: the learning rate.
        scale: a factor for the gradients.
        limit: the magnitude to which elements of the sums are clipped before scaling.
    """

    total: KeySums
    learning_rate: float
    scale: Any = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Push:
    """When and how tables are updated.

    Attributes:
        step: the step of the tables.
        draw: a different number for each push, for admission by chance.
        where: a text about the gradients for messages, such as `in step 3`.
        drops_not_finite: whether to drop gradients with NaN or infinity; otherwise they
            raise an error.
    """

    step: int
    draw: int
    where: str
    drops_not_finite: bool = False


@dataclass(frozen=True, slots=True)
class TablesOfKeys:
    """The tables of a node whose rows the same keys select.

    Attributes:
        tables: the tables.
    """

    tables: Sequence[SparseTable]

    def find(self, keys: Array) -> tuple[FoundRows, ...]:
        """Find the rows of keys (uint64[n]) now, for a later `read`."""
        found: dict[int, FoundRows] = {}
        for table in self.tables:
            if id(table.group) not in found:
                found[id(table.group)] = table.find(keys)
        return tuple(found[id(table.group)].copied() for table in self.tables)

    def read(
        self,
        keys: Array,
        out: Sequence[Array],
        found: Sequence[FoundRows] | None = None,
    ) -> Sequence[Array]:
        """Write the rows of keys (uint64[n]) in each table to `out`, an array [n, dim] for each.

        `found` is the result of `find` for these keys, even if the tables have changed since.
        """
        if found is None:
            found = self.find(keys)
        for i, table in enumerate(self.tables):
            table.pull(keys, out[i], found[i])
        return out

    def push(self, updates: Sequence[RowUpdate], at: Push) -> list[Pushed]:
        """Count the keys, and update their rows in each table.

        Args:
            updates: the update of each table. All totals have the same keys.
            at: the step.

        Returns:
            The counts of each table.
        """
        given = dict(zip((t.settings.name for t in self.tables), updates, strict=True))
        pushed: dict[str, Pushed] = {}
        for table in self.tables:
            if table.settings.name not in pushed:
                names = [each.settings.name for each in table.group]
                counts = self._push(table.group, [given[name] for name in names], at)
                pushed |= zip(names, counts, strict=True)
        return [pushed[table.settings.name] for table in self.tables]

    def _push(
        self, tables: Sequence[SparseTable], updates: Sequence[RowUpdate], at: Push
    ) -> list[Pushed]:
        """Push to tables that share an index."""
        table, part = tables[0], updates[0].total.part
        times = part.find("times", table.settings.name)
        pushed = push_together(
            tables,
            part.keys,
            [_as_update(each) for each in updates],
            step=at.step,
            occurrences=part.occurrences,
            scores=_scores(table, part),
            times=None if times is None else times.values,
            draw=at.draw,
            drop_not_finite=at.drops_not_finite,
            where=at.where,
        )
        table.note_time(0 if times is None else times.now)
        return pushed


def _as_update(update: RowUpdate) -> Update:
    gradients = update.total.gradients
    if update.limit is not None:
        gradients = np.clip(gradients, -update.limit, update.limit)
    scale = 1.0 if update.scale is None else float(update.scale)
    return Update(gradients, update.learning_rate, scale)


def _scores(table: SparseTable, part: KeyPart) -> Array | None:
    """Return the increases of scores. By default each occurrence is one without a click."""
    if (scoring := table.settings.score) is None:
        return None
    if (scores := part.find("scores", table.settings.name)) is not None:
        return scores.values
    return part.occurrences.astype(np.float32) * np.float32(scoring.no_click)
