"""Counts the FLOPs of a function for any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from placer.ops.function import Function
from placer.ops.functions.batch_types import TRACE_BATCHES, abstract_values
from placer.place.types import TensorType


def costs(
    function: Function,
    types: Sequence[TensorType],
    keywords: Mapping[str, Any],
    sizes: tuple[int, int],
) -> dict[str, tuple[int, int]]:
    """Return the FLOPs as XLA counts them before optimization.

    `cost` is for the forward pass, `grad_cost` for the backward pass. Both hold the FLOPs
    for zero rows and per row, extrapolated from the batches `sizes`.
    """

    def both(*xs: jax.Array) -> Any:
        out, residuals = function.forward(*xs, **keywords)
        ones = jax.tree.map(
            lambda y: None if y.dtype.kind in "iub" else jax.numpy.ones_like(y),
            out if isinstance(out, tuple) else (out,),
        )
        return out, function.backward(residuals, *xs, *ones)

    cost = flops_of(partial(function, **keywords), types, sizes)
    total = flops_of(both, types, sizes)
    difference = max(0, total[0] - cost[0]), max(0, total[1] - cost[1])
    return {"cost": cost, "grad_cost": difference}


def flops_of(
    fn: Callable[..., Any],
    types: Sequence[TensorType],
    sizes: tuple[int, int] = TRACE_BATCHES,
) -> tuple[int, int]:
    """Return the FLOPs of a function for zero rows, and per row."""
    small, large = (_flops(fn, abstract_values(types, size)) for size in sizes)
    each = (large - small) // (sizes[1] - sizes[0])
    return max(0, small - each * sizes[0]), each


def _flops(fn: Callable[..., Any], structs: Sequence[Any]) -> int:
    analysis = jax.jit(fn).lower(*structs).cost_analysis()
    return int((analysis or {}).get("flops", 0))
