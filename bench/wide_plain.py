"""W2 in one process of plain JAX, with the rows of all possible keys in one array.

    python wide_plain.py rows.npz 1000000 STEPS WARM

A step finds the distinct keys of its batch with numpy, and is one jitted function with
donated state, which changes the rows of these keys. Prints the times when the steps after
the first WARM ones began and ended.
"""

from __future__ import annotations

import sys
import time
from itertools import pairwise

import numpy as np

from placer.system.memory.allocator import keep_memory

ROWS, DIM, WIDTHS = 1024, 16, (429, 400, 400, 400, 1)
PADDED = 2048
"""Rows that the sizes of a batch differ by, so that few functions are compiled."""


def main() -> None:
    path, keys, steps, warm = sys.argv[1], *map(int, sys.argv[2:])
    keep_memory(1 << 28)

    import jax
    import jax.numpy as jnp
    import optax

    with np.load(path) as file:
        number, dense, label = file["number"], file["dense"], file["label"]
    random = np.random.default_rng(0)
    mlp = [
        (
            random.normal(0, (1 / a) ** 0.5, (a, b)).astype(np.float32),
            np.zeros(b, np.float32),
        )
        for a, b in pairwise(WIDTHS)
    ]
    mlp = jax.tree.map(jnp.array, mlp)
    adam = optax.adam(1e-3)
    moments = adam.init(mlp)
    table = jnp.array(random.uniform(-0.05, 0.05, (keys, DIM)).astype(np.float32))
    squares = jnp.full((keys, DIM), 0.1, jnp.float32)

    def loss_of(mlp, rows, positions, dense, label):
        x = jnp.concatenate([rows[positions].reshape(ROWS, -1), dense], 1)
        for i, (w, b) in enumerate(mlp):
            x = x @ w + b
            if i + 1 < len(mlp):
                x = jax.nn.relu(x)
        return optax.sigmoid_binary_cross_entropy(x, label).mean()

    def one(mlp, moments, table, squares, distinct, positions, dense, label):
        rows = table.at[distinct].get(mode="fill", fill_value=0)
        loss, (gradients, slope) = jax.value_and_grad(loss_of, (0, 1))(
            mlp, rows, positions, dense, label
        )
        updates, moments = adam.update(gradients, moments)
        sums = squares.at[distinct].get(mode="fill", fill_value=1) + slope**2
        change = -0.05 * slope / jnp.sqrt(sums + 1e-7)
        how = {"mode": "drop", "unique_indices": True}
        squares = squares.at[distinct].set(sums, **how)
        table = table.at[distinct].add(change, **how)
        return optax.apply_updates(mlp, updates), moments, table, squares, loss

    step = jax.jit(one, donate_argnums=(0, 1, 2, 3))
    begin = 0.0
    for i in range(warm + steps):
        if i == warm:
            jax.block_until_ready(table)
            begin = time.monotonic()
        rows = slice(i * ROWS, (i + 1) * ROWS)
        distinct, positions = np.unique(number[rows], return_inverse=True)
        padded = np.full(-(-distinct.size // PADDED) * PADDED, keys, np.int32)
        padded[: distinct.size] = distinct
        positions = positions.astype(np.int32).reshape(ROWS, -1)
        mlp, moments, table, squares, loss = step(
            mlp, moments, table, squares, padded, positions, dense[rows], label[rows]
        )
        float(loss)  # as in a training loop that prints its loss
    jax.block_until_ready(table)
    print(begin, time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
