"""An op's result and gradients, as a node program asks for them."""

from typing import Any

import jax
import jax.numpy as jnp

from placer import ops


def result_and_gradients(
    kind: str, *inputs: Any, dy: Any = None, **attrs: Any
) -> tuple[jax.Array, tuple[jax.Array | None, ...]]:
    """`dy` is 1 for every element unless it is given."""
    function = getattr(ops, kind)
    out, residuals = function.forward(*inputs, **attrs)
    saved = [inputs[i] for i in residuals.saves]
    return out, function.backward(
        residuals, *saved, jnp.ones_like(out) if dy is None else dy
    )
