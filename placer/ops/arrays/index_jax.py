"""gather, take_along_axis, one_hot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from placer.ops.common.precision_jax import put_together

Place = tuple[Any, ...]
"""What stands in the brackets of an array."""


def gather(x: jax.Array, indices: jax.Array, *, axis: int = 0) -> jax.Array:
    return _gather(axis % x.ndim, x.shape, x, indices)


def _across(axis: int, shape: Sequence[int], indices: jax.Array) -> Place:
    return (*[slice(None)] * axis, _inside(indices, shape[axis]))


def _inside(indices: jax.Array, size: int) -> jax.Array:
    """The indices, negative ones moved past the end: JAX would count from there."""
    return jnp.where(indices < 0, size, indices)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gather(
    axis: int, shape: tuple[int, ...], x: jax.Array, indices: jax.Array
) -> jax.Array:
    return x.at[_across(axis, shape, indices)].get(mode="fill")


def _gather_forward(
    axis: int, shape: tuple[int, ...], x: jax.Array, indices: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _gather(axis, shape, x, indices), indices


def _gather_backward(
    axis: int, shape: tuple[int, ...], indices: jax.Array, dy: jax.Array
) -> tuple[jax.Array, None]:
    return put(shape, _across(axis, shape, indices), dy), None


_gather.defvjp(_gather_forward, _gather_backward)


def put(shape: Sequence[int], place: Place, dy: jax.Array) -> jax.Array:
    """Zeros, with `dy` added up in its place; what lies outside is dropped."""
    return put_together(shape, place, dy, "drop")


def take_along_axis(x: jax.Array, indices: jax.Array, *, axis: int = -1) -> jax.Array:
    return _take_along(axis % x.ndim, x.shape, x, indices)


def along(axis: int, shape: Sequence[int], indices: jax.Array) -> Place:
    """The place of each of the indices, which count along the axis."""
    place: list[Any] = list(jnp.ogrid[tuple(slice(size) for size in indices.shape)])
    place[axis] = _inside(indices, shape[axis])
    return tuple(place)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _take_along(
    axis: int, shape: tuple[int, ...], x: jax.Array, indices: jax.Array
) -> jax.Array:
    return x.at[along(axis, shape, indices)].get(mode="fill")


def _take_along_forward(
    axis: int, shape: tuple[int, ...], x: jax.Array, indices: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _take_along(axis, shape, x, indices), indices


def _take_along_backward(
    axis: int, shape: tuple[int, ...], indices: jax.Array, dy: jax.Array
) -> tuple[jax.Array, None]:
    return put(shape, along(axis, shape, indices), dy), None


_take_along.defvjp(_take_along_forward, _take_along_backward)


def one_hot(ids: jax.Array, *, classes: int, dtype: str = "float32") -> jax.Array:
    return (ids[..., None] == jnp.arange(classes)).astype(dtype)
