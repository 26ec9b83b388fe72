"""gather, take_along_axis and one_hot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from placer.ops.common.precision_jax import scatter_add

Place = tuple[Any, ...]
"""An index of an array, as it is written in brackets."""


def gather(x: jax.Array, indices: jax.Array, *, axis: int = 0) -> jax.Array:
    return _gather(axis % x.ndim, x.shape, x, indices)


def _index_axis(axis: int, shape: Sequence[int], indices: jax.Array) -> Place:
    return (*[slice(None)] * axis, _nonnegative(indices, shape[axis]))


def _nonnegative(indices: jax.Array, size: int) -> jax.Array:
    """Replace negative indices by one past the end: JAX would count from the end."""
    return jnp.where(indices < 0, size, indices)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gather(
    axis: int, shape: tuple[int, ...], x: jax.Array, indices: jax.Array
) -> jax.Array:
    return x.at[_index_axis(axis, shape, indices)].get(mode="fill")


def _gather_forward(
    axis: int, shape: tuple[int, ...], x: jax.Array, indices: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _gather(axis, shape, x, indices), indices


def _gather_backward(
    axis: int, shape: tuple[int, ...], indices: jax.Array, dy: jax.Array
) -> tuple[jax.Array, None]:
    return scatter_gradient(shape, _index_axis(axis, shape, indices), dy), None


_gather.defvjp(_gather_forward, _gather_backward)


def scatter_gradient(shape: Sequence[int], place: Place, dy: jax.Array) -> jax.Array:
    """Add `dy` to zeros of `shape` at the index `place`, the gradient of indexing.

    What is outside of the array is dropped.
    """
    return scatter_add(shape, place, dy, "drop")


def take_along_axis(x: jax.Array, indices: jax.Array, *, axis: int = -1) -> jax.Array:
    return _take_along(axis % x.ndim, x.shape, x, indices)


def index_along(axis: int, shape: Sequence[int], indices: jax.Array) -> Place:
    """Return an index that selects, along `axis`, an element for each of `indices`."""
    place: list[Any] = list(jnp.ogrid[tuple(slice(size) for size in indices.shape)])
    place[axis] = _nonnegative(indices, shape[axis])
    return tuple(place)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _take_along(
    axis: int, shape: tuple[int, ...], x: jax.Array, indices: jax.Array
) -> jax.Array:
    return x.at[index_along(axis, shape, indices)].get(mode="fill")


def _take_along_forward(
    axis: int, shape: tuple[int, ...], x: jax.Array, indices: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _take_along(axis, shape, x, indices), indices


def _take_along_backward(
    axis: int, shape: tuple[int, ...], indices: jax.Array, dy: jax.Array
) -> tuple[jax.Array, None]:
    return scatter_gradient(shape, index_along(axis, shape, indices), dy), None


_take_along.defvjp(_take_along_forward, _take_along_backward)


def one_hot(ids: jax.Array, *, classes: int, dtype: str = "float32") -> jax.Array:
    return (ids[..., None] == jnp.arange(classes)).astype(dtype)
