"""multi_head_attention. The backward repeats no product of the forward."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from ..common.gradient_jax import differentiable
from ..common.precision_jax import widen
from ..common.roles_jax import name_operands
from .attention_jax import Three, attend, attend_backward
from .projections import (
    BIASED,
    SEQUENCES,
    WEIGHTS,
    is_saved,
    projection_sources,
)

Saved = Mapping[str, jax.Array | None]
Residuals = tuple[Saved, Three, jax.Array, jax.Array]


def multi_head_attention(
    *operands: jax.Array, heads: int, causal: bool = False
) -> jax.Array:
    named = name_operands(operands, SEQUENCES, (1, 2, 3), "mask", WEIGHTS, BIASED)
    return _layer(heads, causal, named)


def _layer_forward(
    heads: int, causal: bool, named: Mapping[str, jax.Array]
) -> tuple[jax.Array, Residuals]:
    def project(x: jax.Array, which: str) -> jax.Array:
        y = x @ named[f"w_{which}"]
        return y + named[f"b_{which}"] if f"b_{which}" in named else y

    query, key, value = (
        project(named[source], which)
        for which, source in projection_sources(named).items()
    )
    mask = named.get("mask")
    attended, probabilities = attend(heads, causal, None, (query, key, value), mask)
    saved = {name: a if is_saved(name) else None for name, a in named.items()}
    residuals = saved, (query, key, value), probabilities, attended
    return project(attended, "output"), residuals


def _layer_backward(
    heads: int, causal: bool, residuals: Residuals, dy: jax.Array
) -> tuple[Saved]:
    saved, projections, probabilities, attended = residuals
    named = {name: a for name, a in saved.items() if a is not None}
    sources = projection_sources(named)
    cotangents: dict[str, jax.Array] = {}

    def project_backward(
        x: jax.Array, which: str, dy: jax.Array, to: jax.Array
    ) -> jax.Array:
        """Add the cotangents of a projection's parameters; return x's, with `to`'s
        dtype.
        """
        # For y = x · w + b: dw = xᵀ · dy, db = Σ dy, dx = dy · wᵀ
        cotangents[f"w_{which}"] = jnp.einsum("bti,bto->io", x, dy)
        cotangents[f"b_{which}"] = jnp.sum(dy, axis=(0, 1))
        weights = named[f"w_{which}"]
        return jnp.einsum("bto,io->bti", dy, weights, preferred_element_type=to.dtype)

    d_attended = project_backward(attended, "output", dy, dy)
    slopes = attend_backward(heads, None, projections, probabilities, d_attended)
    for (which, source), slope in zip(sources.items(), slopes, strict=True):
        dx = project_backward(named[source], which, slope, widen(dy))
        cotangents[source] = cotangents[source] + dx if source in cotangents else dx
    # One operand may feed several projections: sum in float32, round once
    for source in dict.fromkeys(sources.values()):
        cotangents[source] = cotangents[source].astype(dy.dtype)
    return ({name: cotangents.get(name) for name in saved},)


_layer = differentiable(_layer_forward, _layer_backward, static=2)
