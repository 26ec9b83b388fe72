"""Manages the memory of a table's values: one buffer, or two alternating buffers."""

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
    """Return zeroed, 64-byte aligned memory that is private to this process."""
    return aligned.zeros((nbytes,), np.uint8)


class ValueBuffers:
    """Flat arrays of the same size and dtype, for reading and writing values.

    An update writes new values to `write_target()`; `publish` makes them current. With
    `in_place`, one array is used and updates overwrite values that readers see. Otherwise
    two private arrays alternate. If a view of the previous array still exists, such as a
    JAX array, a new array is allocated. Views in other processes cannot be tracked, so other
    processes receive copies.

    Args:
        size: the number of elements.
        dtype: the dtype.
        allocate: returns memory for the array of an update in place.
        in_place: whether updates overwrite the current values.

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
        # The memory of the previous array, and a weak reference to the array. numpy sets
        # `base` of every view to the array that wraps a `memoryview`. A dead reference
        # therefore means that no view of the array exists.
        self._previous: tuple[memoryview, weakref.ref[Array]] | None = None
        self.current = self._new() if size else np.empty(0, dtype)

    def write_target(self) -> Array:
        """Return the array to write new values to, of shape [size].

        For an update in place it is `current`; otherwise its elements are undefined.
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
