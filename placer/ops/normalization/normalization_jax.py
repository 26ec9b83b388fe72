"""layer_norm, rms_norm and group_norm.

Besides x and scale, the backward needs the mean and the inverse deviation of each set
of elements that are normalized together.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ..common.gradient_jax import WithBackward, with_gradient
from ..common.precision_jax import widen
from ..elementwise.broadcasting_jax import broadcast_add


@dataclass(frozen=True, slots=True)
class _Norm:
    """The axes to normalize over; `groups` splits the last axis."""

    axes: tuple[int, ...]
    epsilon: float
    centred: bool = True
    groups: int = 0

    def mean(self, x: jax.Array) -> jax.Array:
        """Return the mean of each set of elements that are normalized together."""
        mean = jnp.mean(x, self.axes)
        if not self.groups:
            return mean
        rows, channels = mean.shape
        grouped = mean.reshape(rows, self.groups, channels // self.groups)
        return jnp.mean(grouped, -1)

    def expand(self, mean: jax.Array, x: jax.Array) -> jax.Array:
        """Return means in a shape that broadcasts to x."""
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
    y = _normalize(x, scale, norm=_Norm(_axes_from(axis, x), epsilon))
    return y if bias is None else broadcast_add(y, bias)


def rms_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-6,
) -> jax.Array:
    norm = _Norm(_axes_from(axis, x), epsilon, centred=False)
    return _normalize(x, scale, norm=norm)


def _axes_from(axis: int, x: jax.Array) -> tuple[int, ...]:
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
    y = _normalize(x, scale, norm=norm)
    return y if bias is None else broadcast_add(y, bias)


@with_gradient
def _normalize(x: jax.Array, scale: jax.Array | None, *, norm: _Norm) -> WithBackward:
    wide = widen(x)
    mean = norm.mean(wide) if norm.centred else None
    centred = _subtract_mean(norm, wide, mean)
    # not mean(x²) - mean²: it cancels if the mean is far from 0
    inverse = jax.lax.rsqrt(norm.mean(jnp.square(centred)) + norm.epsilon)
    y = centred * norm.expand(inverse, x)
    y = y if scale is None else y * widen(scale)

    def backward(dy: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        # Let z = (x - mean) · r be the normalized x, r the inverse deviation, and dz =
        # dy · scale. Then dscale = Σ dy · z and dx = r · (dz - z · mean(dz · z) -
        # mean(dz)). Without a subtracted mean, the last term is absent.
        dz, d_scale = widen(dy), None
        z = _subtract_mean(norm, widen(x), mean) * norm.expand(inverse, x)
        if scale is not None:
            d_scale = jnp.sum(dz * z, tuple(range(x.ndim - scale.ndim)))
            d_scale = d_scale.astype(scale.dtype)
            dz = dz * widen(scale)
        dx = dz - z * norm.expand(norm.mean(dz * z), x)
        if norm.centred:
            dx = dx - norm.expand(norm.mean(dz), x)
        return (dx * norm.expand(inverse, x)).astype(x.dtype), d_scale

    return y.astype(x.dtype), backward


def _subtract_mean(norm: _Norm, x: jax.Array, mean: jax.Array | None) -> jax.Array:
    return x if mean is None else x - norm.expand(mean, x)
