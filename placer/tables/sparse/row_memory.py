"""Allocates the rows of a table in address space that is reserved once.

The system allocates memory only for pages that are used, so a growing table never moves rows.
Rows belong to chunks of CHUNK rows, and each chunk belongs to one partition. The rows of a
partition can therefore be read in long pieces. A partition reuses the rows that it frees.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np

from placer.errors import RunError
from placer.tables.sparse.intrinsics import inlined
from placer.tables.sparse.state import CHUNK, NONE, Array, State, without_rows

_NORESERVE = 0x4000
"""MAP_NORESERVE of Linux, which the module `mmap` lacks."""


def reserve(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array of zeros whose pages use memory only after they are written.

    Raises:
        RunError: if the system refuses this much address space.
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
            hint="run `ulimit -v unlimited`, and set vm.overcommit_memory to 0 or 1",
        ) from error
    with suppress(OSError):  # the kernel may lack huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, kind).reshape(shape)


def give_back(array: Array, first: int, stop: int) -> None:
    """Return the memory of rows [first, stop) of a reserved array to the system.

    Only whole pages are returned. The rows must not be used again.
    """
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


@inlined
def take_row(state: State, own: Any) -> Any:
    """Allocate a row for a partition (`own`, dtype PARTITION).

    The caller fills the row. Before the call, it must ensure that a free chunk exists.
    """
    # No nested branches: numba would count references to arrays in them.
    row = own.free
    if row != NONE:
        own.free = np.int64(state.meta[row, 0]) - 1
    elif own.next < (own.chunk + 1) * CHUNK:
        row = own.next
        own.next = row + 1
    else:
        chunk = state.chunks[0]
        state.chunks[0] = chunk + 1 + state.chunk_before[chunk]
        state.chunks[1] += 1
        state.chunks[2] = max(state.chunks[2], chunk + 1)
        state.chunk_before[chunk] = own.chunk
        own.chunk = chunk
        own.chunks += 1
        row = chunk * CHUNK
        own.next = row + 1
    own.rows += 1
    return row


@inlined
def free_row(state: State, own: Any, row: Any) -> None:
    """Free a row of a partition."""
    own.rows -= 1
    state.meta[row, 0] = np.uint64(own.free + 1)
    state.meta[row, 1] = np.uint64(0)
    own.free = row


def give_chunks(state: State, own: Array) -> None:
    """Free all chunks of partitions (dtype PARTITION) that have no rows."""
    for each in own:
        assert each["rows"] == 0
        chunk = int(each["chunk"])
        while chunk != NONE:
            before = int(state.chunk_before[chunk])
            state.chunk_before[chunk] = state.chunks[0] - chunk - 1
            state.chunks[0] = chunk
            state.chunks[1] -= 1
            chunk = before
    own[:] = without_rows(own.size)


def chunks_for(own: Array, rows: Array) -> int:
    """Return the number of new chunks that partitions need for `rows` more rows each."""
    free = own["chunks"] * CHUNK - own["rows"]
    return int(np.maximum(-(-(rows - free) // CHUNK), 0).sum())


def chunks_left(state: State) -> int:
    """Return the number of chunks that still fit into the address space."""
    return state.chunk_before.size - int(state.chunks[1])


def chunk_nbytes(state: State) -> int:
    """Return the bytes of a chunk."""
    by_row = (state.values, state.meta, state.scalars, state.updates)
    arrays = [each for each in (*by_row, state.times, state.scores) if each.size]
    return CHUNK * sum(int(each[0].nbytes) for each in arrays)
