"""Names operands by their role, for layers with an optional operand in the middle."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import jax
import jax.numpy as jnp


def name_operands(
    operands: Sequence[jax.Array],
    leading: Sequence[str],
    numbers: Collection[int],
    last: str,
    weights: tuple[str, ...],
    biased: tuple[str, ...],
) -> dict[str, jax.Array]:
    """Return a layer's operands by name.

    The last operand before the parameters is `last` if it is not float. Raises
    ValueError if the number of leading operands is not in `numbers`.
    """
    parameters = biased if operands[-1].ndim == 1 else weights
    others = operands[: len(operands) - len(parameters)]
    has_last = len(others) > 1 and not jnp.issubdtype(others[-1].dtype, jnp.floating)
    number = len(others) - has_last
    if number not in numbers:
        raise ValueError(
            f"needs {' or '.join(map(str, numbers))} of {', '.join(leading)}, then"
            f" optionally {last}, then {', '.join(parameters)}; got"
            f" {len(operands)} arrays"
        )
    names = (*leading[:number], *((last,) if has_last else ()), *parameters)
    return dict(zip(names, operands, strict=True))
