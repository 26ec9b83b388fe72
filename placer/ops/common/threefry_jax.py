"""The random number generator threefry2x32 in JAX.

Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3". It produces the
same bits as the NumPy version in `placer.tables.initial.threefry`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

Pair = tuple[jax.Array, jax.Array]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry2x32(key: Pair, counter: Pair) -> Pair:
    """Return two 32-bit random words for each counter, after 20 rounds.

    All arrays are uint32 and broadcast against each other.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    a, b = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):  # the key is added after every 4 rounds
        for rotation in _ROTATIONS[group % 2]:
            a = a + b
            b = ((b << rotation) | (b >> (32 - rotation))) ^ a
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return a, b
