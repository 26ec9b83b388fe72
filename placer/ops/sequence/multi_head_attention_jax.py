"""multi_head_attention: no product of forward is made again in backward."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from placer.ops.common.precision_jax import wide
from placer.ops.sequence.attention_jax import Arrays, Three, attend, attend_backward
from placer.ops.sequence.multi_head_attention import is_saved, roles, sources
from placer.types import TensorType


def multi_head_attention(
    *operands: jax.Array, heads: int, causal: bool = False
) -> jax.Array:
    names = roles([TensorType(str(a.dtype), a.shape) for a in operands])
    return _layer(heads, causal, names, *operands)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _layer(
    heads: int, causal: bool, names: tuple[str, ...], *operands: jax.Array
) -> jax.Array:
    return _layer_forward(heads, causal, names, *operands)[0]


def _layer_forward(
    heads: int, causal: bool, names: tuple[str, ...], *operands: jax.Array
) -> tuple[jax.Array, tuple[Arrays, Three, jax.Array, jax.Array]]:
    given = dict(zip(names, operands, strict=True))

    def projected(x: jax.Array, which: str) -> jax.Array:
        y = x @ given[f"w_{which}"]
        return y + given[f"b_{which}"] if f"b_{which}" in given else y

    query, key, value = (
        projected(given[source], which) for which, source in sources(names).items()
    )
    mask = given.get("mask")
    seen, probabilities = attend(heads, causal, None, (query, key, value), mask)
    saved = tuple(a if is_saved(n) else None for n, a in given.items())
    kept = saved, (query, key, value), probabilities, seen
    return projected(seen, "output"), kept


def _layer_backward(
    heads: int,
    causal: bool,
    names: tuple[str, ...],
    kept: tuple[Arrays, Three, jax.Array, jax.Array],
    dy: jax.Array,
) -> Arrays:
    saved, projections, probabilities, seen = kept
    given = {n: a for n, a in zip(names, saved, strict=True) if a is not None}
    found: dict[str, jax.Array] = {}

    def back(x: jax.Array, which: str, dy: jax.Array, to: jax.Array) -> jax.Array:
        """Of the layer's input, in the dtype of `to`."""
        found[f"w_{which}"] = jnp.einsum("bti,bto->io", x, dy)
        found[f"b_{which}"] = jnp.sum(dy, axis=(0, 1))
        weights = given[f"w_{which}"]
        return jnp.einsum("bto,io->bti", dy, weights, preferred_element_type=to.dtype)

    d_seen = back(seen, "output", dy, dy)
    slopes = attend_backward(heads, None, projections, probabilities, d_seen)
    for (which, source), slope in zip(sources(names).items(), slopes, strict=True):
        dx = back(given[source], which, slope, wide(dy))
        found[source] = found[source] + dx if source in found else dx
    for source in {*sources(names).values()}:  # added up wide, and rounded once
        found[source] = found[source].astype(dy.dtype)
    return tuple(found.get(name) for name in names)


_layer.defvjp(_layer_forward, _layer_backward)
