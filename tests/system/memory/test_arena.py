"""The arena: buffers are aligned, and reused only when no array is on them."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.system.memory.arena import Arena, size_class


class CountingArena(Arena):
    """Counts the buffers that were allocated and reused, and the bytes in the pool."""

    def __init__(self, **options: int) -> None:
        super().__init__(**options)
        self.buffers: list[memoryview] = []
        self.reused = 0

    def _get_buffer(self, size: int) -> memoryview:
        buffer = super()._get_buffer(size)
        if any(buffer is known for known in self.buffers):
            self.reused += 1
        else:
            self.buffers.append(buffer)
        return buffer

    @property
    def allocated(self) -> int:
        return len(self.buffers)

    @property
    def idle_bytes(self) -> int:
        with self._lock:
            self._collect_freed()
            return self._idle_bytes


@given(
    sizes=st.lists(st.integers(0, 200_000), max_size=8),
    dtype=st.sampled_from(["bool", "int8", "float32", "float64"]),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_arrays_are_aligned_and_never_overlap(sizes, dtype):
    arena = Arena()
    arrays = arena.allocate_all([(dtype, (size,)) for size in sizes])
    arrays += [arena.allocate(dtype, (size,)) for size in sizes]
    for i, array in enumerate(arrays):
        array.view(np.uint8)[...] = i
    for i, array in enumerate(arrays):
        assert array.dtype == dtype
        assert array.shape == (sizes[i % len(sizes)],)
        assert array.flags.c_contiguous
        assert array.nbytes == 0 or array.ctypes.data % 64 == 0
        assert (array.view(np.uint8) == i).all()


@given(st.integers(1, 1 << 40))
@settings(derandomize=True, deadline=None)
def test_size_classes_fit_the_size_and_waste_little(nbytes):
    size = size_class(nbytes)
    assert nbytes <= size <= max(64, nbytes + 64, nbytes * 1.26)
    assert size_class(size) == size


def test_scalars_and_empty_arrays_have_the_requested_shape():
    arena = Arena()
    assert arena.allocate("float64", ()).shape == ()
    assert arena.allocate("float64", (3, 0, 2)).shape == (3, 0, 2)


@pytest.mark.parametrize("nbytes", [20_000, 1_000_000])
def test_buffer_is_reused_only_after_its_last_view_is_freed(nbytes):
    arena = CountingArena()
    array = arena.allocate(np.uint8, (nbytes,))
    address = array.ctypes.data
    row = array.reshape(-1, 10)[2][3:]
    transposed = row.view(np.int8)[::2]
    del array, row
    other = arena.allocate(np.uint8, (nbytes,))
    assert other.ctypes.data != address
    del transposed
    again = arena.allocate(np.uint8, (nbytes,))
    assert again.ctypes.data == address
    assert (arena.allocated, arena.reused) == (2, 1)


def test_small_arrays_share_a_buffer_until_the_last_is_freed():
    arena = CountingArena()
    first, second = arena.allocate_all([(np.float64, (3000,)), (np.int32, (6000,))])
    assert arena.allocated == 1
    del first
    assert arena.idle_bytes == 0
    del second
    assert arena.idle_bytes >= 48_000


def test_jax_array_that_aliases_a_buffer_prevents_its_reuse():
    jax = pytest.importorskip("jax")
    arena = Arena()
    array = arena.allocate(np.float32, (1 << 16,))
    array[...] = 1
    address = array.ctypes.data
    alias = jax.device_put(array)
    aliased = alias.unsafe_buffer_pointer() == address
    del array
    gc.collect()
    other = arena.allocate(np.float32, (1 << 16,))
    other[...] = 2
    assert aliased, "XLA copies an aligned array"
    assert other.ctypes.data != address
    assert float(alias.sum()) == 1 << 16


def test_idle_bytes_are_bounded_and_least_recent_size_is_dropped_first():
    arena = CountingArena(max_idle_bytes=3 << 20)
    arrays = [arena.allocate(np.uint8, (1 << 20,)) for _ in range(2)]
    arrays.append(arena.allocate(np.uint8, (2 << 20,)))
    arrays.reverse()
    while arrays:
        arrays.pop()
    assert arena.idle_bytes == 3 << 20
    reused = arena.reused
    kept = arena.allocate(np.uint8, (2 << 20,))
    assert kept.nbytes == 2 << 20
    assert arena.reused == reused + 1


def test_threads_get_distinct_buffers():
    arena = CountingArena()
    wrong: list[int] = []

    def work(mark: int) -> None:
        for size in range(12_000, 36_000, 200):
            array = arena.allocate(np.uint8, (size,))
            array[...] = mark
            if not (array == mark).all():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert arena.allocated < 4 * 30
