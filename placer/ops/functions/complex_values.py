"""Passes complex values between regions as real arrays.

Messages and sums of gradients have real numbers. The last axis of such an array has the
real and the imaginary parts. JAX differentiates the conversions, so gradients are those
of the function as written.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core


def with_real_boundary(closed: Any) -> Any:
    """Return a closed jaxpr with real arrays in place of complex inputs and results.

    The order of inputs and results stays. A jaxpr without such inputs and results is
    returned as it is.
    """
    inputs = [is_complex(aval) for aval in closed.in_avals]
    results = [is_complex(aval) for aval in closed.out_avals]
    if not any(inputs) and not any(results):
        return closed

    def with_reals(*arrays: jax.Array) -> list[jax.Array]:
        pairs = zip(arrays, inputs, strict=True)
        values = [_from_real(x) if is_pair else x for x, is_pair in pairs]
        computed = zip(core.jaxpr_as_fun(closed)(*values), results, strict=True)
        return [_to_real(y) if is_pair else y for y, is_pair in computed]

    return jax.make_jaxpr(with_reals)(*map(_real_shape, closed.in_avals))


def is_complex(value: Any) -> bool:
    """Return True if an array or an abstract value has complex numbers."""
    return bool(jnp.issubdtype(value.dtype, jnp.complexfloating))


def _real_shape(aval: Any) -> Any:
    return jax.eval_shape(_to_real, aval) if is_complex(aval) else aval


def _to_real(x: Any) -> jax.Array:
    return jnp.stack([jnp.real(x), jnp.imag(x)], -1)


def _from_real(x: jax.Array) -> jax.Array:
    parts = (jax.lax.index_in_dim(x, i, -1, keepdims=False) for i in (0, 1))
    return jax.lax.complex(*parts)
