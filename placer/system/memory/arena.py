"""A pool of aligned buffers for received arrays, which are reused.

XLA uses a numpy array without a copy only if it starts at a multiple of 64 bytes, and new
pages cost as much as the copy into them. So the arena returns 64-byte aligned arrays. It
reuses a buffer when the *last* array on the buffer has been freed. This includes a JAX
array that aliases the buffer, because it holds a reference to the numpy array. The number
of steps does not matter.

The arena notices the end of an array by a weak reference. numpy sets the `base` of every
view to the ultimate owner of the memory, so a weak reference to a view would fire while
slices of the view are still in use. The weak reference here is to the owner: an array
over a `memoryview`, which numpy does not look behind.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from placer.system.memory import aligned
from placer.system.memory.aligned import ALIGNMENT, aligned_offsets, round_up

SHARED_BELOW: Final = 64 << 10
"""Arrays of fewer bytes that are allocated together share one buffer."""
SLAB_BELOW: Final = 16 << 10
"""Arrays of fewer bytes are parts of a slab. A slab is freed with its last array and is
not reused."""
SLAB: Final = 64 << 10
"""The size of a slab in bytes."""

Array = npt.NDArray[Any]


def size_class(nbytes: int) -> int:
    """Return the size of the buffer for `nbytes`: a quarter step between powers of two.

    >>> [size_class(n) for n in (1, 64, 65, 1000, 1025, 1_000_000)]
    [64, 64, 128, 1024, 1280, 1048576]
    """
    step = max(ALIGNMENT, 1 << max(0, (nbytes - 1).bit_length() - 3))
    return max(1, -(-nbytes // step)) * step


class Arena:
    """A bounded pool of 64-byte aligned buffers, safe to use from many threads. At most
    `max_idle_bytes` stay in the pool unused. Beyond that, buffers of the least recently
    used size are freed. Buffers in use are not limited."""

    def __init__(self, max_idle_bytes: int = 512 << 20) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._lock = threading.Lock()
        self._idle: OrderedDict[int, list[memoryview]] = OrderedDict()
        self._idle_bytes = 0
        self._slab = memoryview(b"")
        self._slab_used = 0
        # The callback of a weak reference can run in any thread at any time, even inside
        # `allocate` while the lock is held. So it must not wait for the lock: it only
        # appends to a deque, which is atomic. `_collect_freed` does the rest.
        self._freed: deque[memoryview] = deque()
        self._lent: dict[int, tuple[Any, memoryview]] = {}
        freed, lent = self._freed, self._lent
        self._on_freed = lambda ref: freed.append(lent.pop(id(ref))[1])

    def allocate(self, dtype: npt.DTypeLike, shape: Sequence[int] = ()) -> Array:
        """Return an uninitialized C-contiguous array, 64-byte aligned."""
        kind = np.dtype(dtype)
        nbytes = prod(shape) * kind.itemsize
        if nbytes == 0:
            return np.empty(tuple(shape), kind)
        if nbytes < SLAB_BELOW:
            with self._lock:
                offset = self._slab_used
                if offset + nbytes > self._slab.nbytes:
                    self._slab, offset = aligned.empty((SLAB,), np.uint8).data, 0
                self._slab_used = offset + round_up(nbytes)
                return np.ndarray(tuple(shape), kind, self._slab, offset)
        return self._new_owner(nbytes).view(kind).reshape(tuple(shape))

    def allocate_all(
        self, types: Iterable[tuple[npt.DTypeLike, Sequence[int]]]
    ) -> list[Array]:
        """Return one array for each (dtype, shape), with small arrays in one buffer. A
        message of many small arrays then needs one buffer, which is reused when the
        last of its arrays has been freed."""
        requests = [(np.dtype(dtype), tuple(shape)) for dtype, shape in types]
        if len(requests) == 1:
            return [self.allocate(*requests[0])]
        sizes = [prod(shape) * dtype.itemsize for dtype, shape in requests]
        small = [i for i, size in enumerate(sizes) if SLAB_BELOW <= size < SHARED_BELOW]
        arrays: dict[int, Array] = {}
        if len(small) > 1:
            offsets, span = aligned_offsets([sizes[i] for i in small])
            owner = self._new_owner(span)
            for i, offset in zip(small, offsets, strict=True):
                dtype, shape = requests[i]
                part = owner[offset : offset + sizes[i]]
                arrays[i] = part.view(dtype).reshape(shape)
        return [
            arrays[i] if i in arrays else self.allocate(dtype, shape)
            for i, (dtype, shape) in enumerate(requests)
        ]

    def _new_owner(self, nbytes: int) -> npt.NDArray[np.uint8]:
        buffer = self._get_buffer(size_class(nbytes))
        owner = np.frombuffer(buffer[:nbytes], np.uint8)
        ref = weakref.ref(owner, self._on_freed)
        self._lent[id(ref)] = ref, buffer
        return owner

    def _get_buffer(self, size: int) -> memoryview:
        with self._lock:
            self._collect_freed()
            free = self._idle.get(size)
            if free:
                self._idle.move_to_end(size)
                self._idle_bytes -= size
                return free.pop()
        return aligned.empty((size,), np.uint8).data

    def _collect_freed(self) -> None:
        """Move freed buffers into the pool, and drop buffers beyond the limit."""
        while self._freed:
            buffer = self._freed.popleft()
            self._idle.setdefault(buffer.nbytes, []).append(buffer)
            self._idle.move_to_end(buffer.nbytes)
            self._idle_bytes += buffer.nbytes
        while self._idle_bytes > self._max_idle_bytes:
            size, free = next(iter(self._idle.items()))
            if free:
                free.pop()
                self._idle_bytes -= size
            if not free:
                del self._idle[size]
