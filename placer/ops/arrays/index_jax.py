"""gather, take_along_axis and one_hot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..common.gradient_jax import WithBackward, with_gradient
from ..common.precision_jax import scatter_add

Place = tuple[Any, ...]
"""An index as written in brackets after an array."""


@with_gradient
def gather(x: jax.Array, indices: jax.Array, *, axis: int = 0) -> WithBackward:
    return _select(index_axis, axis % x.ndim, x, indices)


def index_axis(axis: int, shape: Sequence[int], indices: jax.Array) -> Place:
    """Return an index that selects slices along `axis`."""
    return (*[slice(None)] * axis, _nonnegative(indices, shape[axis]))


def _nonnegative(indices: jax.Array, size: int) -> jax.Array:
    """Replace negative indices by one past the end; JAX would count them backwards."""
    return jnp.where(indices < 0, size, indices)


@with_gradient
def take_along_axis(
    x: jax.Array, indices: jax.Array, *, axis: int = -1
) -> WithBackward:
    return _select(index_along, axis % x.ndim, x, indices)


def index_along(axis: int, shape: Sequence[int], indices: jax.Array) -> Place:
    """Return an index that selects, along `axis`, an element for each of `indices`."""
    place: list[Any] = list(jnp.ogrid[tuple(slice(size) for size in indices.shape)])
    place[axis] = _nonnegative(indices, shape[axis])
    return tuple(place)


def _select(
    at: Callable[[int, Sequence[int], jax.Array], Place],
    axis: int,
    x: jax.Array,
    indices: jax.Array,
) -> WithBackward:
    return (
        x.at[at(axis, x.shape, indices)].get(mode="fill"),
        lambda dy: (scatter_gradient(x.shape, at(axis, x.shape, indices), dy), None),
    )


def scatter_gradient(shape: Sequence[int], place: Place, dy: jax.Array) -> jax.Array:
    """Return the gradient of indexing: `dy` at `place`, in zeros of `shape`."""
    return scatter_add(shape, place, dy, "drop")


def one_hot(ids: jax.Array, *, classes: int, dtype: str = "float32") -> jax.Array:
    return (ids[..., None] == jnp.arange(classes)).astype(dtype)
