"""Where a table's values lie: one buffer, or two by turns."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.memory import aligned

Array = npt.NDArray[Any]
Allocate = Callable[[int], npt.NDArray[np.uint8]]


def private(nbytes: int) -> npt.NDArray[np.uint8]:
    """Memory that no other process sees: zeros, 64-byte aligned."""
    return aligned.zeros((nbytes,), np.uint8)


class Memory:
    """Flat arrays of one size and dtype; `now` is the one that is read.

    New values are written to `target()`, and `publish` makes that the one that is read.
    In place they are the same, in memory that `allocate` has given once. Else the target
    is the array that was read before, or a new one while anybody has a view of that, a
    JAX array included. Such arrays are this process's own, so that everybody who has a
    view is known of: others get copies.

    Every view has the array as its `base`, since numpy goes no further back than to an
    array over a `memoryview`: when the array is gone, they all are.
    """

    def __init__(
        self, size: int, dtype: np.dtype[Any], allocate: Allocate, in_place: bool
    ) -> None:
        self._size = size
        self._dtype = dtype
        self._allocate = allocate if in_place else private
        self._in_place = in_place or not size
        self._before: tuple[memoryview, weakref.ref[Array]] | None = None
        self.now = self._new() if size else np.empty(0, dtype)

    def target(self) -> Array:
        """The array to write new values to; it may hold anything."""
        if self._in_place:
            return self.now
        if self._before is not None:
            memory, read = self._before
            if read() is None:
                return np.frombuffer(memory, self._dtype)
        return self._new()

    def publish(self, target: Array) -> None:
        """Read this array from now on."""
        if target is not self.now:
            assert isinstance(self.now.base, memoryview)
            self._before = self.now.base, weakref.ref(self.now)
            self.now = target

    def _new(self) -> Array:
        raw = self._allocate(self._size * self._dtype.itemsize)
        assert raw.dtype == np.uint8, raw.dtype
        assert raw.size == self._size * self._dtype.itemsize, raw.size
        assert aligned.is_aligned(raw)
        return np.frombuffer(raw.data, self._dtype)
