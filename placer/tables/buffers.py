"""The memory of a table's values: one buffer, or two buffers that alternate."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.system.memory import aligned

Array = npt.NDArray[Any]
Allocate = Callable[[int], npt.NDArray[np.uint8]]


def allocate_private(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return zeroed, 64-byte aligned memory that no other process sees."""
    return aligned.zeros((nbytes,), np.uint8)


class ValueBuffers:
    """Flat arrays of one size and dtype; `current` is the one that readers see.

    An update writes new values to `write_target()`; `publish` makes them current.

    With `in_place` there is one array, in memory from `allocate`, and an update
    overwrites what readers see. Otherwise two arrays alternate: the target is the array
    that was current before, or a new array while there still is a view of that one (a
    JAX array counts as a view). These arrays are private to the process, because views
    in other processes cannot be counted; other processes receive copies.

    Attributes:
        current: the array that readers see, of shape [size].
    """

    def __init__(
        self, size: int, dtype: np.dtype[Any], allocate: Allocate, in_place: bool
    ) -> None:
        self._size = size
        self._dtype = dtype
        self._allocate = allocate if in_place else allocate_private
        self._in_place = in_place or not size
        # The memory of the array that was current before, and a weak reference to that
        # array. numpy sets `base` of every view to an array over a `memoryview` and no
        # further back, so when the reference is dead, no view of the array is left.
        self._previous: tuple[memoryview, weakref.ref[Array]] | None = None
        self.current = self._new() if size else np.empty(0, dtype)

    def write_target(self) -> Array:
        """Return the array to write new values to, of shape [size].

        Its elements are undefined, except that in place it is `current`.
        """
        if self._in_place:
            return self.current
        if self._previous is not None:
            memory, previous = self._previous
            if previous() is None:
                return np.frombuffer(memory, self._dtype)
        return self._new()

    def publish(self, target: Array) -> None:
        """Make `target` the array that readers see."""
        if target is not self.current:
            assert isinstance(self.current.base, memoryview)
            self._previous = self.current.base, weakref.ref(self.current)
            self.current = target

    def _new(self) -> Array:
        raw = self._allocate(self._size * self._dtype.itemsize)
        assert raw.dtype == np.uint8, raw.dtype
        assert raw.size == self._size * self._dtype.itemsize, raw.size
        assert aligned.is_aligned(raw)
        return np.frombuffer(raw.data, self._dtype)
