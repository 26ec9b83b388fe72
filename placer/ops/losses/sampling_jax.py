"""Losses against one class and some that are drawn, with drawing by exact integers.

A class is found by comparing random words with thresholds, so that the same words give
the same class wherever and with however many rows they are drawn.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from placer.ops.common.precision_jax import put_together, wide
from placer.ops.losses.labels_jax import class_numbers
from placer.ops.losses.loss_jax import Count, reduced
from placer.ops.special.random_jax import bits

Kept = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]
Gradients = tuple[jax.Array, jax.Array, jax.Array, None, None]


def sample_classes(
    position: jax.Array,
    *,
    classes: int,
    num_sampled: int,
    stream: int,
    sampler: str = "log_uniform",
) -> jax.Array:
    words = bits(position, stream, num_sampled)
    if sampler == "uniform":
        found = words % jnp.uint32(classes)
    else:
        below = np.log(np.arange(classes) + 2.0) / np.log(classes + 1.0)
        thresholds = np.minimum(np.floor(below * 2**32), 2**32 - 1).astype(np.uint32)
        found = jnp.searchsorted(jnp.asarray(thresholds), words, side="right")
        found = jnp.minimum(found, classes - 1)
    drawn: jax.Array = found.astype(jnp.int32)
    return drawn


def nce_loss(
    x: jax.Array,
    w: jax.Array,
    b: jax.Array,
    label: jax.Array,
    sampled: jax.Array,
    *,
    sampler: str = "log_uniform",
    remove_accidental_hits: bool = False,
    reduce: str = "mean",
    count: Count = None,
) -> jax.Array:
    how = ("nce", sampler, remove_accidental_hits)
    return reduced(_losses(how, x, w, b, label, sampled), reduce, count)


def sampled_softmax_loss(
    x: jax.Array,
    w: jax.Array,
    b: jax.Array,
    label: jax.Array,
    sampled: jax.Array,
    *,
    sampler: str = "log_uniform",
    remove_accidental_hits: bool = True,
    reduce: str = "mean",
    count: Count = None,
) -> jax.Array:
    how = ("softmax", sampler, remove_accidental_hits)
    return reduced(_losses(how, x, w, b, label, sampled), reduce, count)


How = tuple[str, str, bool]


def _expected(
    sampler: str, classes: int, drawn: int, ids: jax.Array, like: jax.Array
) -> jax.Array:
    """The logarithm of how often each class is drawn for a row, on average."""
    if sampler == "uniform":
        return jnp.full(ids.shape, np.log(drawn / classes), like.dtype)
    number = ids.astype(like.dtype)
    share = jnp.log1p(1 / (number + 1)) / np.log(classes + 1.0)
    found: jax.Array = jnp.log(share * drawn)
    return found


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _losses(
    how: How,
    x: jax.Array,
    w: jax.Array,
    b: jax.Array,
    label: jax.Array,
    sampled: jax.Array,
) -> jax.Array:
    losses: jax.Array = _forward(how, x, w, b, label, sampled)[0]
    return losses


def _ids(classes: int, label: jax.Array, sampled: jax.Array) -> jax.Array:
    """The class of each row and those drawn for it; 0 for a label that is none."""
    number = class_numbers(label)
    own = jnp.where((number >= 0) & (number < classes), number, 0)
    return jnp.concatenate([own.astype(sampled.dtype)[:, None], sampled], axis=1)


def _forward(
    how: How,
    x: jax.Array,
    w: jax.Array,
    b: jax.Array,
    label: jax.Array,
    sampled: jax.Array,
) -> tuple[jax.Array, Kept]:
    loss, sampler, apart = how
    classes, drawn = w.shape[0], sampled.shape[1]
    ids = _ids(classes, label, sampled)
    logits = wide(jnp.einsum("nd,nkd->nk", x, w[ids]) + b[ids])
    logits = logits - _expected(sampler, classes, drawn, ids, logits)
    if apart:
        again = (ids == ids[:, :1]) & (jnp.arange(1 + drawn) > 0)
        logits = jnp.where(again, -jnp.inf, logits)
    own = (jnp.arange(1 + drawn) == 0).astype(logits.dtype)
    if loss == "nce":
        losses = jnp.sum(jax.nn.softplus(jnp.where(own > 0, -logits, logits)), axis=1)
        slope = jax.nn.sigmoid(logits) - own
    else:
        total = jax.nn.logsumexp(logits, axis=1, keepdims=True)
        losses = (total - logits)[:, 0]
        slope = jnp.exp(logits - total) - own
    number = class_numbers(label)
    there = (number >= 0) & (number < classes)
    losses = jnp.where(there, losses, jnp.nan).astype(x.dtype)
    return losses, (x, w, label, sampled, slope.astype(x.dtype))


def _backward(how: How, kept: Kept, dy: jax.Array) -> Gradients:
    x, w, label, sampled, slope = kept
    ids = _ids(w.shape[0], label, sampled)
    each = slope * dy[:, None]
    dx = jnp.einsum("nk,nkd->nd", each, w[ids])
    dw = put_together(w.shape, ids, each[:, :, None] * x[:, None, :])
    db = put_together(w.shape[:1], ids, each)
    return dx, dw, db, None, None


_losses.defvjp(_forward, _backward)
