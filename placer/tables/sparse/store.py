"""The memory of a table: address space is reserved once, and takes memory as it is used.

So nothing is ever moved when a table grows. Rows belong to chunks of CHUNK rows, and each
chunk to one partition: what a partition has can be read in long pieces, and rows that it
gives back are its own to use again.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numba.extending import register_jitable

from placer.errors import RunError
from placer.tables.sparse.state import CHUNK, NONE, Array, State

_NORESERVE = 0x4000
"""MAP_NORESERVE of Linux, which Python's module does not name."""


def reserve(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array of zeros whose pages take memory once they are written to.

    Raises RunError where the system refuses so much address space.
    """
    kind = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=object)) * kind.itemsize
    if nbytes == 0:
        return np.zeros(shape, kind)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    try:
        memory = mmap.mmap(-1, nbytes, flags=flags)
    except OSError as error:
        raise RunError(
            f"the system refuses {nbytes >> 30} GiB of address space for a table:"
            f" {error.strerror}",
            hint="allow more with `ulimit -v unlimited`, and vm.overcommit_memory 0 or 1",
        ) from error
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, kind).reshape(shape)


def give_back(array: Array, first: int, stop: int) -> None:
    """Return the memory of rows [first, stop) of a reserved array to the system; they are
    zeros afterwards, as far as whole pages are concerned, and are not used again."""
    memory = _memory_of(array)
    row = array.itemsize * array[0].size
    page = mmap.PAGESIZE
    low, high = -(-first * row // page) * page, stop * row // page * page
    if low < high:
        memory.madvise(mmap.MADV_DONTNEED, low, high - low)


def _memory_of(array: Array) -> mmap.mmap:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    memory = base.obj if isinstance(base, memoryview) else base
    assert isinstance(memory, mmap.mmap)
    return memory


@register_jitable
def take_row(state: State, partition: Any) -> Any:
    """Return a free row for a partition. The caller fills it, and has made sure that the
    store has another chunk."""
    own = state.partitions[partition]
    own.rows += 1
    row = own.free
    if row != NONE:
        own.free = np.int64(state.meta[row, 0]) - 1
        return row
    if own.next == own.stop:
        chunk = state.chunks[0]
        state.chunks[0] = chunk + 1
        state.chunk_before[chunk] = own.chunk
        own.chunk = chunk
        own.next = chunk * CHUNK
        own.stop = own.next + CHUNK
    row = own.next
    own.next = row + 1
    return row


@register_jitable
def free_row(state: State, partition: Any, row: Any) -> None:
    """Give a row back to its partition."""
    own = state.partitions[partition]
    own.rows -= 1
    state.meta[row, 0] = np.uint64(own.free + 1)
    state.meta[row, 1] = np.uint64(0)
    own.free = row
