"""Aligned buffers that are used again: where received arrays lie.

XLA takes a numpy array without a copy only when it starts at a multiple of 64 bytes,
and fresh pages cost as much as the copy into them. So the arena hands out 64-byte
aligned arrays, and takes a buffer back when the *last* array on it is gone, a JAX array
that aliases it included, because that one holds a reference to the numpy array. A
buffer never comes back by counting steps.

numpy gives every view the ultimate owner as its `base`, so a finalizer on an
intermediate view would fire while slices of it are still in use. The object watched
here is that owner: an array over a `memoryview`, at which numpy stops collapsing.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ALIGNMENT: Final = 64
SHARED_BLOCK: Final = 64 << 10
"""Arrays smaller than this that come together share one buffer (`take_all`)."""
POOLED: Final = 16 << 10
"""Smaller arrays are cut from a slab that nobody watches: it goes with the last one."""
SLAB: Final = 64 << 10

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What an arena has done: buffers made new, handed out again, and idle bytes."""

    allocated: int
    reused: int
    idle_bytes: int


def size_class(nbytes: int) -> int:
    """The buffer size that serves `nbytes`: quarters between powers of two, at least 64.

    >>> [size_class(n) for n in (1, 64, 65, 1000, 1025, 1_000_000)]
    [64, 64, 128, 1024, 1280, 1048576]
    """
    step = max(ALIGNMENT, 1 << max(0, (nbytes - 1).bit_length() - 3))
    return max(1, -(-nbytes // step)) * step


def _aligned(size: int) -> memoryview:
    raw = np.empty(size + ALIGNMENT, np.uint8)
    offset = -raw.__array_interface__["data"][0] % ALIGNMENT
    return raw.data[offset : offset + size]


class Arena:
    """A bounded pool of 64-byte aligned buffers, safe to use from many threads.

    `keep` is how many idle bytes stay in the pool; beyond it the size used longest ago
    goes first. Arrays that are handed out are not bounded here.
    """

    def __init__(self, keep: int = 512 << 20) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._idle: OrderedDict[int, list[memoryview]] = OrderedDict()
        self._idle_bytes = 0
        self._allocated = 0
        self._reused = 0
        self._slab = memoryview(b"")
        self._slab_used = 0
        # Callbacks of weak references run wherever the collector happens to, also inside
        # `take` with the lock held: each step here is atomic and takes no lock.
        self._returned: deque[memoryview] = deque()
        self._lent: dict[int, tuple[Any, memoryview]] = {}
        returned, lent = self._returned, self._lent
        self._gone = lambda ref: returned.append(lent.pop(id(ref))[1])

    def take(self, dtype: npt.DTypeLike, shape: Sequence[int] = ()) -> Array:
        """An uninitialised C-contiguous array that starts at a multiple of 64 bytes."""
        kind = np.dtype(dtype)
        nbytes = prod(shape) * kind.itemsize
        if nbytes == 0:
            return np.empty(tuple(shape), kind)
        if nbytes < POOLED:
            with self._lock:
                offset = self._slab_used
                if offset + nbytes > self._slab.nbytes:
                    self._slab, offset = _aligned(SLAB), 0
                self._slab_used = offset + -(-nbytes // ALIGNMENT) * ALIGNMENT
                return np.ndarray(tuple(shape), kind, self._slab, offset)
        return self._owner(nbytes).view(kind).reshape(tuple(shape))

    def take_all(
        self, types: Iterable[tuple[npt.DTypeLike, Sequence[int]]]
    ) -> list[Array]:
        """One array for each (dtype, shape), small ones side by side in one buffer.

        A message of many small arrays then costs one buffer; it comes back when the
        last of them is gone.
        """
        wanted = [(np.dtype(dtype), tuple(shape)) for dtype, shape in types]
        if len(wanted) == 1:
            return [self.take(*wanted[0])]
        sizes = [prod(shape) * dtype.itemsize for dtype, shape in wanted]
        small = [i for i, size in enumerate(sizes) if POOLED <= size < SHARED_BLOCK]
        arrays: dict[int, Array] = {}
        if len(small) > 1:
            room = {i: -(-sizes[i] // ALIGNMENT) * ALIGNMENT for i in small}
            owner = self._owner(sum(room.values()))
            offset = 0
            for i in small:
                dtype, shape = wanted[i]
                part = owner[offset : offset + sizes[i]]
                arrays[i] = part.view(dtype).reshape(shape)
                offset += room[i]
        return [
            arrays[i] if i in arrays else self.take(dtype, shape)
            for i, (dtype, shape) in enumerate(wanted)
        ]

    @property
    def statistics(self) -> Statistics:
        """Counts so far; a buffer whose last array is gone counts as idle."""
        with self._lock:
            self._collect()
            return Statistics(self._allocated, self._reused, self._idle_bytes)

    def _owner(self, nbytes: int) -> npt.NDArray[np.uint8]:
        block = self._block(size_class(nbytes))
        owner = np.frombuffer(block[:nbytes], np.uint8)
        ref = weakref.ref(owner, self._gone)
        self._lent[id(ref)] = ref, block
        return owner

    def _block(self, size: int) -> memoryview:
        with self._lock:
            self._collect()
            free = self._idle.get(size)
            if free:
                self._idle.move_to_end(size)
                self._idle_bytes -= size
                self._reused += 1
                return free.pop()
            self._allocated += 1
        return _aligned(size)

    def _collect(self) -> None:
        """Put what finalizers gave back into the pool, and let the oldest sizes go."""
        while self._returned:
            block = self._returned.popleft()
            self._idle.setdefault(block.nbytes, []).append(block)
            self._idle.move_to_end(block.nbytes)
            self._idle_bytes += block.nbytes
        while self._idle_bytes > self._keep:
            size, free = next(iter(self._idle.items()))
            if free:
                free.pop()
                self._idle_bytes -= size
            if not free:
                del self._idle[size]
