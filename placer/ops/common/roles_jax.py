"""Operands by name, for ops with optional operands that precede others."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def name_operands(
    operands: Sequence[jax.Array],
    leading: Sequence[str],
    last: str,
    weights: tuple[str, ...],
    biased: tuple[str, ...],
) -> dict[str, jax.Array]:
    """Return a layer's operands by the names that `name_operands` of `roles.py` gives
    them, which has checked them."""
    parameters = biased if operands[-1].ndim == 1 else weights
    others = operands[: len(operands) - len(parameters)]
    has_last = len(others) > 1 and not jnp.issubdtype(others[-1].dtype, jnp.floating)
    number = len(others) - has_last
    names = (*leading[:number], *((last,) if has_last else ()), *parameters)
    return dict(zip(names, operands, strict=True))
