"""Threefry-2x32 compared with Random123's published vectors and with JAX."""

import jax
import numpy as np
import pytest

from placer.tables.initial.threefry import threefry2x32

# kat_vectors of Random123 1.14: threefry2x32, 20 rounds.
VECTORS = [
    ((0x0, 0x0), (0x0, 0x0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


def words(pair):
    return tuple(np.array([word], np.uint32) for word in pair)


@pytest.mark.parametrize(("key", "counter", "expected"), VECTORS)
def test_published_vectors(key, counter, expected):
    assert [int(w[0]) for w in threefry2x32(words(key), words(counter))] == [*expected]


def test_same_bits_as_jax_fold_in():
    key = jax.random.key(7, impl="threefry2x32")
    folded = [
        np.asarray(jax.random.key_data(jax.random.fold_in(key, i))) for i in (3, 4)
    ]
    ours = threefry2x32(words((0, 7)), (np.uint32(0), np.array([3, 4], np.uint32)))
    np.testing.assert_array_equal(np.stack(ours, axis=1), folded)


def test_arrays_of_keys_and_counters_broadcast():
    rng = np.random.default_rng(0)
    k0, k1 = rng.integers(0, 2**32, (2, 5, 1), dtype=np.uint32)
    counter = np.arange(3, dtype=np.uint32)
    x0, x1 = threefry2x32((k0, k1), (counter, counter))
    assert x0.shape == x1.shape == (5, 3)
    one = threefry2x32((k0[2], k1[2]), (counter[1:2], counter[1:2]))
    assert (int(x0[2, 1]), int(x1[2, 1])) == (int(one[0][0]), int(one[1][0]))
