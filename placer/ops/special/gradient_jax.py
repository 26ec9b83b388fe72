"""stop_gradient."""

from __future__ import annotations

import jax


def stop_gradient(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(x)
