"""Functions that an exported model contains, which are no ops."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
from safetensors.flax import load


def load_params(path: str = "params.safetensors") -> dict[str, jax.Array]:
    """Return the parameters of a safetensors file by name.

    Raises ValueError if the file has changed since placer wrote it.
    """
    content = Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    metadata = header.pop("__metadata__", {})
    entries, size = json.dumps(header, separators=(",", ":")).encode(), 4 << 20
    values = memoryview(content)[start:]
    chunks = [values[i : i + size] for i in range(0, len(values), size)]
    checksums = "".join(f"{crc32(each):08x}" for each in [memoryview(entries), *chunks])
    if metadata.get("placer.crc32", checksums) != checksums:
        raise ValueError(f"{path} is damaged: it does not have its checksums")
    params: dict[str, jax.Array] = load(content)
    return params


def as_table(
    rows: jax.Array, present: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return the indices of looked-up rows in a table of them, and the table. The index of
    a row that is not present is -1."""
    leading = rows.shape[:-1]
    table = rows.reshape(-1, rows.shape[-1])
    indices = jnp.arange(table.shape[0], dtype=jnp.int32).reshape(leading)
    return indices if present is None else jnp.where(present, indices, -1), table


def outputs_of(
    fn: Callable[..., Any],
    params: dict[str, jax.Array],
    state: dict[str, jax.Array],
    *inputs: jax.Array,
    rng: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """Return the outputs of a function as in an evaluation, then its state."""
    outputs, state = fn(params, state, *inputs, rng=rng, training=False)
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return *outputs, *state.values()


def row_positions(rows: int) -> jax.Array:
    """Return the step, which is 0, and the number of each row, uint32[rows, 2]."""
    numbers = jnp.arange(rows, dtype=jnp.uint32)
    return jnp.stack([jnp.zeros_like(numbers), numbers], axis=-1)


def with_leaves(pytree: Any, leaves: dict[int, jax.Array]) -> Any:
    """Return a pytree, or the one that a function returns, with other arrays as its
    leaves of these numbers."""
    made = pytree() if inspect.isfunction(pytree) else pytree
    own, structure = jax.tree.flatten(made)
    return jax.tree.unflatten(structure, [leaves.get(i, x) for i, x in enumerate(own)])
