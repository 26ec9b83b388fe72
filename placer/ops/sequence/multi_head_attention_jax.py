"""multi_head_attention. The backward repeats no product of the forward."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import differentiable
from placer.ops.common.precision_jax import widen
from placer.ops.sequence.attention_jax import Arrays, Three, attend, attend_backward
from placer.ops.sequence.multi_head_attention import (
    is_saved,
    operand_names,
    projection_sources,
)
from placer.types import TensorType


def multi_head_attention(
    *operands: jax.Array, heads: int, causal: bool = False
) -> jax.Array:
    names = operand_names([TensorType(str(a.dtype), a.shape) for a in operands])
    return _layer(heads, causal, names, *operands)


def _layer_forward(
    heads: int, causal: bool, names: tuple[str, ...], *operands: jax.Array
) -> tuple[jax.Array, tuple[Arrays, Three, jax.Array, jax.Array]]:
    named = dict(zip(names, operands, strict=True))

    def project(x: jax.Array, which: str) -> jax.Array:
        y = x @ named[f"w_{which}"]
        return y + named[f"b_{which}"] if f"b_{which}" in named else y

    query, key, value = (
        project(named[source], which)
        for which, source in projection_sources(names).items()
    )
    mask = named.get("mask")
    attended, probabilities = attend(heads, causal, None, (query, key, value), mask)
    saved = tuple(a if is_saved(n) else None for n, a in named.items())
    residuals = saved, (query, key, value), probabilities, attended
    return project(attended, "output"), residuals


def _layer_backward(
    heads: int,
    causal: bool,
    names: tuple[str, ...],
    residuals: tuple[Arrays, Three, jax.Array, jax.Array],
    dy: jax.Array,
) -> Arrays:
    saved, projections, probabilities, attended = residuals
    named = {n: a for n, a in zip(names, saved, strict=True) if a is not None}
    cotangents: dict[str, jax.Array] = {}

    def project_backward(
        x: jax.Array, which: str, dy: jax.Array, to: jax.Array
    ) -> jax.Array:
        """Add the cotangents of a projection's parameters; return that of its input.

        The result has the dtype of `to`.
        """
        # For y = x · w + b: dw = xᵀ · dy, db = Σ dy, dx = dy · wᵀ
        cotangents[f"w_{which}"] = jnp.einsum("bti,bto->io", x, dy)
        cotangents[f"b_{which}"] = jnp.sum(dy, axis=(0, 1))
        weights = named[f"w_{which}"]
        return jnp.einsum("bto,io->bti", dy, weights, preferred_element_type=to.dtype)

    d_attended = project_backward(attended, "output", dy, dy)
    slopes = attend_backward(heads, None, projections, probabilities, d_attended)
    for (which, source), slope in zip(
        projection_sources(names).items(), slopes, strict=True
    ):
        dx = project_backward(named[source], which, slope, widen(dy))
        cotangents[source] = cotangents[source] + dx if source in cotangents else dx
    # An operand may be the source of several projections: sum in float32, round once
    for source in dict.fromkeys(projection_sources(names).values()):
        cotangents[source] = cotangents[source].astype(dy.dtype)
    return tuple(cotangents.get(name) for name in names)


_layer = differentiable(_layer_forward, _layer_backward, static=3)
