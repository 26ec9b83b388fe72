"""Sampled classes, and the losses nce_loss and sampled_softmax_loss.

A class is a function of one random integer: its remainder (`uniform`), or its position
among integer thresholds (`log_uniform`). The result does not depend on the device, nor on
the number of rows that are drawn together.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from placer.ops.common.gradient_jax import differentiable
from placer.ops.common.precision_jax import scatter_add, widen
from placer.ops.losses.labels_jax import class_numbers
from placer.ops.losses.loss_jax import Count, reduce_losses
from placer.ops.special.random_jax import random_bits

Saved = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]
Gradients = tuple[jax.Array, jax.Array, jax.Array, None, None]


def sample_classes(
    position: jax.Array,
    *,
    classes: int,
    num_sampled: int,
    stream: int,
    sampler: str = "log_uniform",
) -> jax.Array:
    words = random_bits(position, stream, num_sampled)
    if sampler == "uniform":
        drawn = words % jnp.uint32(classes)
    else:
        # P(0) + … + P(c) = log(c + 2) / log(classes + 1)
        cumulative = np.log(np.arange(classes) + 2.0) / np.log(classes + 1.0)
        thresholds = np.floor(cumulative * 2**32)
        thresholds = np.minimum(thresholds, 2**32 - 1).astype(np.uint32)
        drawn = jnp.searchsorted(jnp.asarray(thresholds), words, side="right")
        drawn = jnp.minimum(drawn, classes - 1)
    sampled: jax.Array = drawn.astype(jnp.int32)
    return sampled


Config = tuple[str, str, bool]
"""The loss, the sampler, and whether to remove accidental hits."""


def _log_expected(
    sampler: str, classes: int, samples: int, ids: jax.Array, like: jax.Array
) -> jax.Array:
    """Return log(samples · P(id)) for each id, in the dtype of `like`."""
    if sampler == "uniform":
        return jnp.full(ids.shape, np.log(samples / classes), like.dtype)
    class_ = ids.astype(like.dtype)
    # P(c) = log((c + 2) / (c + 1)) / log(classes + 1)
    probability = jnp.log1p(1 / (class_ + 1)) / np.log(classes + 1.0)
    result: jax.Array = jnp.log(probability * samples)
    return result


def _ids(classes: int, label: jax.Array, sampled: jax.Array) -> jax.Array:
    """Return label and samples of each row, with 0 for an invalid label."""
    class_ = class_numbers(label)
    valid = jnp.where((class_ >= 0) & (class_ < classes), class_, 0)
    return jnp.concatenate([valid.astype(sampled.dtype)[:, None], sampled], axis=1)


def _forward(
    config: Config,
    x: jax.Array,
    w: jax.Array,
    b: jax.Array,
    label: jax.Array,
    sampled: jax.Array,
) -> tuple[jax.Array, Saved]:
    loss, sampler, remove_hits = config
    classes, samples = w.shape[0], sampled.shape[1]
    ids = _ids(classes, label, sampled)
    logits = widen(jnp.einsum("nd,nkd->nk", x, w[ids]) + b[ids])
    logits = logits - _log_expected(sampler, classes, samples, ids, logits)
    if remove_hits:
        hits = (ids == ids[:, :1]) & (jnp.arange(1 + samples) > 0)
        logits = jnp.where(hits, -jnp.inf, logits)
    # slope is the derivative of the loss by the logits; target is 1 for the label
    target = (jnp.arange(1 + samples) == 0).astype(logits.dtype)
    if loss == "nce":
        signed = jnp.where(target > 0, -logits, logits)
        losses = jnp.sum(jax.nn.softplus(signed), axis=1)
        slope = jax.nn.sigmoid(logits) - target
    else:
        total = jax.nn.logsumexp(logits, axis=1, keepdims=True)
        losses = (total - logits)[:, 0]
        slope = jnp.exp(logits - total) - target
    class_ = class_numbers(label)
    valid = (class_ >= 0) & (class_ < classes)
    losses = jnp.where(valid, losses, jnp.nan).astype(x.dtype)
    return losses, (x, w, label, sampled, slope.astype(x.dtype))


def _backward(config: Config, saved: Saved, dy: jax.Array) -> Gradients:
    # z = x · w[id] + b[id], so dx = Σ dz · w[id], dw[id] += dz · x and db[id] += dz
    x, w, label, sampled, slope = saved
    ids = _ids(w.shape[0], label, sampled)
    dz = slope * dy[:, None]
    dx = jnp.einsum("nk,nkd->nd", dz, w[ids])
    dw = scatter_add(w.shape, ids, dz[:, :, None] * x[:, None, :])
    db = scatter_add(w.shape[:1], ids, dz)
    return dx, dw, db, None, None


_losses = differentiable(_forward, _backward, static=1)


def _loss(name: str, remove_hits: bool) -> Callable[..., jax.Array]:
    """Return the function of a loss, given the default of an attribute."""

    def loss(
        x: jax.Array,
        w: jax.Array,
        b: jax.Array,
        label: jax.Array,
        sampled: jax.Array,
        *,
        sampler: str = "log_uniform",
        remove_accidental_hits: bool = remove_hits,
        reduce: str = "mean",
        count: Count = None,
    ) -> jax.Array:
        config = (name, sampler, remove_accidental_hits)
        return reduce_losses(_losses(config, x, w, b, label, sampled), reduce, count)

    return loss


nce_loss = _loss("nce", remove_hits=False)
sampled_softmax_loss = _loss("softmax", remove_hits=True)
