"""attention. The plain formula computes one head after the other."""

import jax.numpy as jnp

from support.op_use import Use
from support.op_uses.activation import plain_softmax

Q, K, V = "float32[batch, 3, 4]", "float32[batch, 5, 4]", "float32[batch, 5, 6]"


def broadcast_mask(mask, shape):
    """Broadcast a mask to `shape`, [rows, time, keys]."""
    if mask.ndim == 1:
        mask = jnp.arange(shape[-1])[None] < mask[:, None]
    if mask.ndim == 2:
        mask = mask[:, None]
    return jnp.broadcast_to(mask != 0, shape)


def plain_attention(query, key, value, mask=None, heads=1, causal=False, scale=None):
    time, keys = query.shape[1], key.shape[1]
    visible = jnp.ones((len(query), time, keys), bool)
    if mask is not None:
        visible = broadcast_mask(mask, visible.shape)
    if causal:
        visible = visible & (jnp.arange(keys)[None] <= jnp.arange(time)[:, None])
    parts = []
    for head in range(heads):
        q, k, v = (
            x[..., head * x.shape[-1] // heads : (head + 1) * x.shape[-1] // heads]
            for x in (query, key, value)
        )
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        weights = plain_softmax(
            jnp.where(visible, factor * q @ k.swapaxes(1, 2), -1e30)
        )
        parts.append(jnp.where(visible, weights, 0.0) @ v)
    return jnp.concatenate(parts, axis=-1)


DIFFERENTIABLE = [
    Use("attention", (Q, K, V)),
    Use("attention", (Q, K, V), {"heads": 2, "scale": 0.3}),
    Use("attention", (Q, K, V), {"causal": True}),
    Use("attention", ("float32[batch, 6, 4]", K, V), {"causal": True}),
    Use("attention", (Q, K, V, "int32[batch]"), {"heads": 2}, domain={3: (0, 7)}),
    Use("attention", (Q, K, V, "bool[batch, 5]"), {"causal": True, "heads": 2}),
    Use("attention", (Q, K, V, "int32[batch, 3, 5]"), {"heads": 2}),
    Use("attention", ("float32[2, 3, 4]",) * 3, {"heads": 4}),
    Use("attention", ("float32[batch, batch, 4]", K, V, "bool[batch, batch, 5]")),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {"attention": plain_attention}
