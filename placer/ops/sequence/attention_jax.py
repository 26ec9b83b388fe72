"""attention: backward takes the probabilities that forward made.

Heads lie side by side in the last dimension.
"""

from __future__ import annotations

from functools import partial
from math import sqrt

import jax
import jax.numpy as jnp

Three = tuple[jax.Array, jax.Array, jax.Array]
Arrays = tuple[jax.Array | None, ...]


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    *,
    heads: int = 1,
    causal: bool = False,
    scale: float | None = None,
) -> jax.Array:
    return _attention(heads, causal, scale, query, key, value, mask)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attention(
    heads: int,
    causal: bool,
    scale: float | None,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None,
) -> jax.Array:
    return attend(heads, causal, scale, (query, key, value), mask)[0]


def _attention_forward(
    heads: int,
    causal: bool,
    scale: float | None,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None,
) -> tuple[jax.Array, tuple[Three, jax.Array]]:
    given = query, key, value
    out, probabilities = attend(heads, causal, scale, given, mask)
    return out, (given, probabilities)


def _attention_backward(
    heads: int,
    causal: bool,
    scale: float | None,
    kept: tuple[Three, jax.Array],
    dy: jax.Array,
) -> Arrays:
    return *attend_backward(heads, scale, *kept, dy), None


_attention.defvjp(_attention_forward, _attention_backward)


def attend(
    heads: int, causal: bool, scale: float | None, given: Three, mask: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """The result [rows, time, heads · size]; the probabilities [rows, heads, time,
    keys], which are 0 where the mask hides a key, and all of them where it hides all."""
    query, key, value = (_apart(x, heads) for x in given)
    # the query is scaled, not the product, which float16 may not hold
    scores = jnp.einsum("bthd,bshd->bhts", query * _scale(scale, query), key)
    shown = _shown(scores, causal, mask)
    if shown is not None:
        scores = jnp.where(shown, scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    if mask is not None:  # which may hide all keys: nothing is taken off, not -inf
        top = jnp.where(jnp.isneginf(top), 0, top)
    powers = jnp.exp(scores - top)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    if mask is not None:
        total = jnp.where(total == 0, 1, total)
    probabilities = powers / total
    out = jnp.einsum("bhts,bshd->bthd", probabilities, value)
    return _together(out), probabilities


def attend_backward(
    heads: int,
    scale: float | None,
    given: Three,
    probabilities: jax.Array,
    dy: jax.Array,
) -> Three:
    query, key, value = (_apart(x, heads) for x in given)
    dy = _apart(dy, heads)
    slopes = jnp.einsum("bthd,bshd->bhts", dy, value)
    mean = jnp.sum(slopes * probabilities, axis=-1, keepdims=True)
    d_scores = probabilities * (slopes - mean)
    factor = _scale(scale, query)
    return (
        _together(jnp.einsum("bhts,bshd->bthd", d_scores, key) * factor),
        _together(jnp.einsum("bhts,bthd->bshd", d_scores, query * factor)),
        _together(jnp.einsum("bhts,bthd->bshd", probabilities, dy)),
    )


def _scale(scale: float | None, query: jax.Array) -> float:
    return 1 / sqrt(query.shape[-1]) if scale is None else scale


def _shown(scores: jax.Array, causal: bool, mask: jax.Array | None) -> jax.Array | None:
    """Which keys each query may look at, to be broadcast to the scores; None: at all."""
    time, keys = scores.shape[-2:]
    past = jnp.tril(jnp.ones((time, keys), bool)) if causal else None
    if mask is None:
        return past
    if mask.ndim == 1:
        mask = jnp.arange(keys) < mask[:, None]
    seen = mask.astype(bool)
    seen = seen[:, None, None] if seen.ndim == 2 else seen[:, None]
    return seen if past is None else seen & past


def _apart(x: jax.Array, heads: int) -> jax.Array:
    """[rows, time, heads · size] as [rows, time, heads, size]."""
    rows, time, width = x.shape
    return jnp.reshape(x, (rows, time, heads, width // heads))


def _together(x: jax.Array) -> jax.Array:
    rows, time, heads, size = x.shape
    return jnp.reshape(x, (rows, time, heads * size))
