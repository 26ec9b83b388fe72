"""layer_norm, rms_norm and group_norm: backward from x and two numbers for each mean."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from placer.ops.common.precision_jax import wide
from placer.ops.elementwise.broadcasting_jax import plus

Kept = tuple[jax.Array, jax.Array | None, jax.Array | None, jax.Array]


@dataclass(frozen=True, slots=True)
class _Norm:
    """What is normalised together: `axes`, and where there are groups, each of them on
    the last axis beside. The mean is taken off where it is `centred`."""

    axes: tuple[int, ...]
    epsilon: float
    centred: bool = True
    groups: int = 0

    def mean(self, x: jax.Array) -> jax.Array:
        """The mean of what is normalised together, without the axes."""
        found = jnp.mean(x, self.axes)
        if not self.groups:
            return found
        rows, channels = found.shape
        apart = found.reshape(rows, self.groups, channels // self.groups)
        return jnp.mean(apart, -1)

    def spread(self, mean: jax.Array, x: jax.Array) -> jax.Array:
        """A mean beside each element of x that it is of, but for broadcasting."""
        if self.groups:
            mean = jnp.repeat(mean, x.shape[-1] // self.groups, -1)
        return jnp.expand_dims(mean, self.axes)


def layer_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> jax.Array:
    y = _normalise(_Norm(_from(axis, x), epsilon), x, scale)
    return y if bias is None else plus(y, bias)


def rms_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-6,
) -> jax.Array:
    return _normalise(_Norm(_from(axis, x), epsilon, centred=False), x, scale)


def _from(axis: int, x: jax.Array) -> tuple[int, ...]:
    return tuple(range(axis % x.ndim, x.ndim))


def group_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    groups: int = 32,
    epsilon: float = 1e-5,
) -> jax.Array:
    norm = _Norm(tuple(range(1, x.ndim - 1)), epsilon, groups=groups)
    y = _normalise(norm, x, scale)
    return y if bias is None else plus(y, bias)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _normalise(norm: _Norm, x: jax.Array, scale: jax.Array | None) -> jax.Array:
    return _normalise_forward(norm, x, scale)[0]


def _normalise_forward(
    norm: _Norm, x: jax.Array, scale: jax.Array | None
) -> tuple[jax.Array, Kept]:
    given = wide(x)
    mean = norm.mean(given) if norm.centred else None
    centred = _centred(norm, given, mean)
    # The variance is that of the distances, where x² - mean² would cancel far from 0.
    inverse = jax.lax.rsqrt(norm.mean(jnp.square(centred)) + norm.epsilon)
    y = centred * norm.spread(inverse, x)
    y = y if scale is None else y * wide(scale)
    return y.astype(x.dtype), (x, scale, mean, inverse)


def _centred(norm: _Norm, x: jax.Array, mean: jax.Array | None) -> jax.Array:
    return x if mean is None else x - norm.spread(mean, x)


def _normalise_backward(
    norm: _Norm, kept: Kept, dy: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    x, scale, mean, inverse = kept
    slope, d_scale = wide(dy), None
    normal = _centred(norm, wide(x), mean) * norm.spread(inverse, x)
    if scale is not None:
        d_scale = jnp.sum(slope * normal, tuple(range(x.ndim - scale.ndim)))
        d_scale = d_scale.astype(scale.dtype)
        slope = slope * wide(scale)
    dx = slope - normal * norm.spread(norm.mean(slope * normal), x)
    if norm.centred:
        dx = dx - norm.spread(norm.mean(slope), x)
    return (dx * norm.spread(inverse, x)).astype(x.dtype), d_scale


_normalise.defvjp(_normalise_forward, _normalise_backward)
