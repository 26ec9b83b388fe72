"""Classes sampled for each row, and losses with them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p

from support.op_use import Use

CLASSES, SAMPLES = 6, 4
_TYPES = (
    "float32[batch, 3]",
    f"float32[{CLASSES}, 3]",
    f"float32[{CLASSES}]",
    "int32[batch]",
    f"int32[batch, {SAMPLES}]",
)
_DOMAIN = {3: (0, CLASSES), 4: (0, CLASSES)}


def plain_sample(position, classes, num_sampled, stream, sampler="log_uniform"):
    """Sample row by row, with bits from JAX's threefry, by counting thresholds."""
    word = jnp.uint32([stream & 0xFFFFFFFF, stream >> 32])
    pairs = jnp.arange(-(-num_sampled // 2), dtype=jnp.uint32)

    def of_row(high, low):
        key = threefry2x32_p.bind(word[0], word[1], high, low)
        spread = [jnp.full_like(pairs, half) for half in key]
        bits = threefry2x32_p.bind(*spread, jnp.zeros_like(pairs), pairs)
        return jnp.stack(bits, -1).ravel()[:num_sampled]

    words = jax.vmap(of_row)(position[:, 0], position[:, 1])
    if sampler == "uniform":
        return (words % classes).astype(jnp.int32)
    ends = np.log(np.arange(classes - 1) + 2) / np.log(classes + 1) * 2**32
    passed = words[..., None] >= jnp.asarray(np.floor(ends).astype(np.uint32))
    return passed.sum(-1, dtype=jnp.int32)


def _logits(x, w, b, label, sampled, sampler, remove_hits):
    (classes, _), (_, drawn) = w.shape, sampled.shape
    ids = jnp.concatenate([label[:, None], sampled], 1)
    probability = jnp.full(classes, 1 / classes)
    if sampler == "log_uniform":
        number = jnp.arange(classes)
        probability = jnp.log((number + 2) / (number + 1)) / jnp.log(classes + 1)
    logits = (x @ w.T + b - jnp.log(drawn * probability))[
        jnp.arange(len(x))[:, None], ids
    ]
    if remove_hits:
        hits = (sampled == label[:, None]).astype(logits.dtype)
        logits = logits.at[:, 1:].add(-1e9 * hits)
    return logits


def _reduced(losses, reduce, count):
    if reduce == "none":
        return losses
    return losses.sum() / (count if reduce == "mean" else 1)


def plain_nce(
    *operands,
    sampler="log_uniform",
    remove_accidental_hits=False,
    reduce="mean",
    count=None,
):
    logits = _logits(*operands, sampler, remove_accidental_hits)
    signs = jnp.array([1.0] + [-1.0] * (logits.shape[1] - 1))
    return _reduced(-jax.nn.log_sigmoid(signs * logits).sum(1), reduce, count)


def plain_softmax(
    *operands,
    sampler="log_uniform",
    remove_accidental_hits=True,
    reduce="mean",
    count=None,
):
    logits = _logits(*operands, sampler, remove_accidental_hits)
    return _reduced(-jax.nn.log_softmax(logits)[:, 0], reduce, count)


_ATTRS = (
    {},
    {"sampler": "uniform", "remove_accidental_hits": True},
    {"sampler": "log_uniform", "remove_accidental_hits": False, "reduce": "sum"},
    {"reduce": "none"},
)

DIFFERENTIABLE = [
    Use(kind, _TYPES, {"sampler": "log_uniform", **way}, _DOMAIN)
    for kind in ("nce_loss", "sampled_softmax_loss")
    for way in _ATTRS
]

WITHOUT_GRADIENT = [
    Use(
        "sample_classes",
        ("uint32[batch, 2]",),
        {"classes": 50, "num_sampled": 5, "sampler": sampler, "stream": 2**62 + 3},
        {0: (0, 1000)},
    )
    for sampler in ("log_uniform", "uniform")
]

PLAIN = {"nce_loss": plain_nce, "sampled_softmax_loss": plain_softmax}
