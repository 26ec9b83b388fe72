"""Data classes for gradients that are summed by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt

Array = npt.NDArray[Any]


class KeyPart(NamedTuple):
    """Distinct keys of a batch.

    Attributes:
        keys: the keys, uint64[n].
        occurrences: how often each key occurs, uint32[n].
        scores: the increase of each key's score, float32[n]. None if the table has no
            scores, or the occurrences determine them.
        times: when each key was last seen, in seconds, uint32[n]; None without times.
        now: the latest time of all rows of the batch, in seconds.
    """

    keys: Array
    occurrences: Array
    scores: Array | None = None
    times: Array | None = None
    now: int = 0


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
