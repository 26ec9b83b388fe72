"""Gradients added up by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt

Array = npt.NDArray[Any]


class KeyPart(NamedTuple):
    """Keys of a batch, each once.

    Attributes:
        keys: uint64[n].
        occurrences: how often each key occurs, uint32[n].
        scores: what each key adds to its score, float32[n], if that is not a function of
            the occurrences.
        times: when each key was seen last, in seconds, uint32[n], if there are times.
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
        part: the keys, in the order in which they first appear.
        gradients: the sums, of shape [n, dim].
    """

    part: KeyPart
    gradients: Array

    def __add__(self, other: KeySums) -> KeySums:
        from placer.tables.sparse.key_sums import sum_by_key  # compiles its loops

        return sum_by_key([self, other])
