"""Threefry-2x32: computes random numbers from a key and a counter, without state.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), with 20
rounds. `jax.random` uses the same function, so JAX computes the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry2x32(
    key: tuple[Words, Words], counter: tuple[Words, Words]
) -> tuple[Words, Words]:
    """Encrypt counters with keys.

    Args:
        key: two uint32 arrays.
        counter: two uint32 arrays. All four arrays are broadcast together.

    Returns:
        Two new uint32 arrays of the broadcast shape.
    """
    k0, k1 = (np.asarray(k, np.uint32) for k in key)
    schedule = (k0, k1, k0 ^ k1 ^ np.uint32(_PARITY))
    shape = np.broadcast_shapes(k0.shape, k1.shape, *(np.shape(c) for c in counter))
    x0, x1 = (np.empty(shape, np.uint32) for _ in counter)
    spare = np.empty(shape, np.uint32)
    np.add(counter[0], schedule[0], out=x0)
    np.add(counter[1], schedule[1], out=x1)
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            np.add(x0, x1, out=x0)
            np.left_shift(x1, np.uint32(rotation), out=spare)
            np.right_shift(x1, np.uint32(32 - rotation), out=x1)
            np.bitwise_or(x1, spare, out=x1)
            np.bitwise_xor(x1, x0, out=x1)
        np.add(x0, schedule[(group + 1) % 3], out=x0)
        np.add(x1, schedule[(group + 2) % 3], out=x1)
        np.add(x1, np.uint32(group + 1), out=x1)
    return x0, x1
