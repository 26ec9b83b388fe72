"""Data classes for keys of a batch, and for gradients that are summed by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy.typing as npt

Array = npt.NDArray[Any]


class Statistic(NamedTuple):
    """A number for each key, or for each row of a batch, besides the occurrences of keys.

    Attributes:
        what: `scores`, the increases of scores, float32[n]; or `times`, in seconds,
            uint32[n]: when each key was last seen.
        tables: the tables that use it.
        values: the numbers.
        now: of times, the latest one of all rows of the batch.
    """

    what: Literal["scores", "times"]
    tables: tuple[str, ...]
    values: Array
    now: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class KeyPart:
    """Distinct keys of a batch.

    Attributes:
        keys: the keys, uint64[n].
        occurrences: how often each key occurs, uint32[n].
        statistics: what some of the tables count besides.
        tables: the tables whose rows the keys select.
    """

    keys: Array
    occurrences: Array
    statistics: Sequence[Statistic] = ()
    tables: tuple[str, ...] = ()
    _merges: dict[tuple[int, ...], MergedKeys] = field(default_factory=dict, init=False)
    """The merges that begin with this part, by the ids of the other parts."""

    def find(self, what: Literal["scores", "times"], table: str) -> Statistic | None:
        """Return the scores or the times of the keys of a table; None if it has none.

        Without them, the occurrences of keys determine their scores.
        """
        found = (s for s in self.statistics if s.what == what and table in s.tables)
        return next(found, None)


class MergedKeys(NamedTuple):
    """The distinct keys of several parts.

    Attributes:
        part: the keys, in the order of their first occurrences.
        numbers: the number of each key of all parts among them, int32[n].
        others: the parts after the first one.
    """

    part: KeyPart
    numbers: Array
    others: Sequence[KeyPart]


@dataclass(frozen=True, slots=True, eq=False)
class KeySums:
    """The sum of the gradients of each key.

    Attributes:
        part: the keys, in the order of their first occurrences.
        gradients: the sums, of shape [n, dim].
    """

    part: KeyPart
    gradients: Array

    def __add__(self, other: KeySums) -> KeySums:
        from placer.tables.sparse.key_sums import sum_by_key  # imports numba

        return sum_by_key([self, other])
