"""attention. The forward saves the softmax probabilities for the backward.

The last dimension of queries, keys, values and the result holds all heads.
"""

from __future__ import annotations

from math import sqrt

import jax
import jax.numpy as jnp

from ..common.gradient_jax import WithBackward, with_gradient

Three = tuple[jax.Array, jax.Array, jax.Array]


@with_gradient
def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    *,
    heads: int = 1,
    causal: bool = False,
    scale: float | None = None,
) -> WithBackward:
    sequences = query, key, value
    out, probabilities = attend(heads, causal, scale, sequences, mask)

    def backward(dy: jax.Array) -> tuple[jax.Array | None, ...]:
        dxs = attend_backward(heads, scale, sequences, probabilities, dy)
        return dxs if mask is None else (*dxs, None)

    return out, backward


def attend(
    heads: int,
    causal: bool,
    scale: float | None,
    sequences: Three,
    mask: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Return the result and the probabilities of attention.

    The result is [rows, time, heads · size]. The probabilities are [rows, heads, time,
    keys]; hidden keys have probability 0.
    """
    query, key, value = (_split_heads(x, heads) for x in sequences)
    # Scale the query: the unscaled product may overflow float16
    scores = jnp.einsum("bthd,bshd->bhts", query * _scale(scale, query), key)
    visible = _visible(scores, causal, mask)
    if visible is not None:
        scores = jnp.where(visible, scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    if mask is not None:
        # If all keys of a query are hidden, avoid -inf - (-inf) and 0 / 0
        top = jnp.where(jnp.isneginf(top), 0, top)
    powers = jnp.exp(scores - top)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    if mask is not None:
        total = jnp.where(total == 0, 1, total)
    probabilities = powers / total
    out = jnp.einsum("bhts,bshd->bthd", probabilities, value)
    return _join_heads(out), probabilities


def attend_backward(
    heads: int,
    scale: float | None,
    sequences: Three,
    probabilities: jax.Array,
    dy: jax.Array,
) -> Three:
    """Return the cotangents of query, key and value."""
    # With p = softmax(s), s = (factor · q) kᵀ and y = p v:
    # dv = pᵀ dy; dp = dy vᵀ; ds = p · (dp - Σ dp · p); dq = factor · ds k;
    # dk = dsᵀ (factor · q)
    query, key, value = (_split_heads(x, heads) for x in sequences)
    dy = _split_heads(dy, heads)
    d_probabilities = jnp.einsum("bthd,bshd->bhts", dy, value)
    mean = jnp.sum(d_probabilities * probabilities, axis=-1, keepdims=True)
    d_scores = probabilities * (d_probabilities - mean)
    factor = _scale(scale, query)
    return (
        _join_heads(jnp.einsum("bhts,bshd->bthd", d_scores, key) * factor),
        _join_heads(jnp.einsum("bhts,bthd->bshd", d_scores, query * factor)),
        _join_heads(jnp.einsum("bhts,bthd->bshd", probabilities, dy)),
    )


def _scale(scale: float | None, query: jax.Array) -> float:
    return 1 / sqrt(query.shape[-1]) if scale is None else scale


def _visible(
    scores: jax.Array, causal: bool, mask: jax.Array | None
) -> jax.Array | None:
    """Return a mask of visible keys that broadcasts to the scores; None means all keys."""
    time, keys = scores.shape[-2:]
    past = jnp.tril(jnp.ones((time, keys), bool)) if causal else None
    if mask is None:
        return past
    if mask.ndim == 1:
        mask = jnp.arange(keys) < mask[:, None]
    visible = mask.astype(bool)
    visible = visible[:, None, None] if visible.ndim == 2 else visible[:, None]
    return visible if past is None else visible & past


def _split_heads(x: jax.Array, heads: int) -> jax.Array:
    rows, time, width = x.shape
    return jnp.reshape(x, (rows, time, heads, width // heads))


def _join_heads(x: jax.Array) -> jax.Array:
    rows, time, heads, size = x.shape
    return jnp.reshape(x, (rows, time, heads * size))
