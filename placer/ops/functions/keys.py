"""The random keys of traced functions."""

from __future__ import annotations

import jax

from placer.ops.composite import derive_stream
from placer.ops.special.random_jax import step_key_of


def step_key(seed: int, name: str, step: int) -> jax.Array:
    """Return the random key that `placer.trace` gives a function in a training step.

    Use it to compute a step of a run again in plain JAX. With `batch="rows"`, random
    numbers with an axis of the batch are drawn for each row: row r of the global batch
    uses `jax.random.fold_in(key, r)`.

    Args:
        seed: The seed of the program.
        name: The name of the trace.
        step: The number of the step. The first step is 1.

    Returns:
        A key of the implementation threefry2x32.

    Example:
        key = placer.step_key(seed=0, name="net", step=1)
        row = jax.random.fold_in(key, 5)
    """
    return step_key_of(derive_stream(seed, name), step)
