"""gather, take_along_axis and one_hot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import differentiable
from placer.ops.common.precision_jax import scatter_add

Place = tuple[Any, ...]
"""An index of an array, as it is written in brackets."""


Selection = Callable[[int, Sequence[int], jax.Array], Place]


def gather(x: jax.Array, indices: jax.Array, *, axis: int = 0) -> jax.Array:
    return _select(_index_axis, axis % x.ndim, x.shape, x, indices)


def _index_axis(axis: int, shape: Sequence[int], indices: jax.Array) -> Place:
    return (*[slice(None)] * axis, _nonnegative(indices, shape[axis]))


def _nonnegative(indices: jax.Array, size: int) -> jax.Array:
    """Replace negative indices by one past the end: JAX would count from the end."""
    return jnp.where(indices < 0, size, indices)


def take_along_axis(x: jax.Array, indices: jax.Array, *, axis: int = -1) -> jax.Array:
    return _select(index_along, axis % x.ndim, x.shape, x, indices)


def index_along(axis: int, shape: Sequence[int], indices: jax.Array) -> Place:
    """Return an index that selects, along `axis`, an element for each of `indices`."""
    place: list[Any] = list(jnp.ogrid[tuple(slice(size) for size in indices.shape)])
    place[axis] = _nonnegative(indices, shape[axis])
    return tuple(place)


def _select_forward(
    at: Selection, axis: int, shape: Sequence[int], x: jax.Array, indices: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return x.at[at(axis, shape, indices)].get(mode="fill"), indices


def _select_backward(
    at: Selection, axis: int, shape: Sequence[int], indices: jax.Array, dy: jax.Array
) -> tuple[jax.Array, None]:
    return scatter_gradient(shape, at(axis, shape, indices), dy), None


_select = differentiable(_select_forward, _select_backward, static=3)


def scatter_gradient(shape: Sequence[int], place: Place, dy: jax.Array) -> jax.Array:
    """Add `dy` to zeros of `shape` at the index `place`, the gradient of indexing.

    What is outside of the array is dropped.
    """
    return scatter_add(shape, place, dy, "drop")


def one_hot(ids: jax.Array, *, classes: int, dtype: str = "float32") -> jax.Array:
    return (ids[..., None] == jnp.arange(classes)).astype(dtype)
