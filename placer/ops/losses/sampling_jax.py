"""Sampled classes, and the losses nce_loss and sampled_softmax_loss.

A class is a function of one random integer: its remainder (`uniform`), or its position
among integer thresholds (`log_uniform`). The result depends neither on the device nor
on the number of rows drawn together.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..common.gradient_jax import WithBackward, with_gradient
from ..common.precision_jax import scatter_add, widen
from ..special.random_jax import random_bits
from .labels_jax import valid_classes
from .loss_jax import make_loss

Pair = tuple[jax.Array, jax.Array]
Gradients = tuple[jax.Array, jax.Array, jax.Array, None, None]
LossOfLogits = Callable[[jax.Array, jax.Array], Pair]
"""Returns the losses and their derivatives by the logits.

The arguments are the logits of a row's label and samples, and an array with 1 for the
label and 0 for samples.
"""


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
    class_, _ = valid_classes(label, classes)
    return jnp.concatenate([class_.astype(sampled.dtype)[:, None], sampled], axis=1)


def _loss(of_logits: LossOfLogits, remove_hits: bool) -> Callable[..., jax.Array]:
    """Return the function of a loss; `remove_hits` is the default of its attribute."""

    @make_loss
    @with_gradient
    def loss(
        x: jax.Array,
        w: jax.Array,
        b: jax.Array,
        label: jax.Array,
        sampled: jax.Array,
        *,
        sampler: str = "log_uniform",
        remove_accidental_hits: bool = remove_hits,
    ) -> WithBackward:
        classes, samples = w.shape[0], sampled.shape[1]
        ids = _ids(classes, label, sampled)
        logits = widen(jnp.einsum("nd,nkd->nk", x, w[ids]) + b[ids])
        logits = logits - _log_expected(sampler, classes, samples, ids, logits)
        if remove_accidental_hits:
            hits = (ids == ids[:, :1]) & (jnp.arange(1 + samples) > 0)
            logits = jnp.where(hits, -jnp.inf, logits)
        target = (jnp.arange(1 + samples) == 0).astype(logits.dtype)
        losses, slope = of_logits(logits, target)
        slope = slope.astype(x.dtype)
        _, valid = valid_classes(label, classes)

        def backward(dy: jax.Array) -> Gradients:
            # z = x · w[id] + b[id], so dx = Σ dz · w[id], dw[id] += dz · x and
            # db[id] += dz
            ids = _ids(classes, label, sampled)
            dz = slope * dy[:, None]
            dx = jnp.einsum("nk,nkd->nd", dz, w[ids])
            dw = scatter_add(w.shape, ids, dz[:, :, None] * x[:, None, :])
            db = scatter_add(w.shape[:1], ids, dz)
            return dx, dw, db, None, None

        return jnp.where(valid, losses, jnp.nan).astype(x.dtype), backward

    return loss


def _binary_cross_entropy(logits: jax.Array, target: jax.Array) -> Pair:
    signed = jnp.where(target > 0, -logits, logits)
    losses = jnp.sum(jax.nn.softplus(signed), axis=1)
    return losses, jax.nn.sigmoid(logits) - target


def _cross_entropy(logits: jax.Array, target: jax.Array) -> Pair:
    total = jax.nn.logsumexp(logits, axis=1, keepdims=True)
    return (total - logits)[:, 0], jnp.exp(logits - total) - target


nce_loss = _loss(_binary_cross_entropy, remove_hits=False)
sampled_softmax_loss = _loss(_cross_entropy, remove_hits=True)
