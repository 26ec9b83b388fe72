"""An op's result and gradients, computed as in a node program."""

from typing import Any

import jax
import jax.numpy as jnp

from placer import ops


def result_and_gradients(
    kind: str, *inputs: Any, dy: Any = None, **attrs: Any
) -> tuple[jax.Array, tuple[jax.Array | None, ...]]:
    """Return the result and the gradients; `dy` is 1 for each element by default."""
    function = getattr(ops, kind)

    @jax.jit
    def program(*inputs: Any) -> Any:
        out, residuals = function.forward(*inputs, **attrs)
        saved = [inputs[i] for i in residuals.saves]
        return out, function.backward(
            residuals, *saved, jnp.ones_like(out) if dy is None else dy
        )

    return program(*inputs)
