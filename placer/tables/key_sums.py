"""Gradients added up by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class KeySums:
    """The sum of the gradients of each key.

    Attributes:
        keys: uint64[n], each key once, in the order in which they first appear.
        gradients: the sums, of shape [n, dim].
        occurrences: how often each key occurs, uint32[n].
    """

    keys: Array
    gradients: Array
    occurrences: Array

    def __add__(self, other: KeySums) -> KeySums:
        from placer.tables.sparse.key_sums import sum_by_key  # compiles its loops

        return sum_by_key([self, other])
