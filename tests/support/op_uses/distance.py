"""Losses of a prediction and a target of one shape, and cosine_similarity."""

import jax.numpy as jnp

from support.op_use import Use
from support.op_uses.loss import loss_uses, reduce_losses


def plain_huber(prediction, target, delta=1.0, **kwargs):
    far = jnp.abs(prediction - target)
    near = 0.5 * far**2
    return reduce_losses(
        jnp.where(far <= delta, near, delta * (far - 0.5 * delta)), **kwargs
    )


def plain_kl_div(log_prediction, target, **kwargs):
    ratio = jnp.log(target / jnp.exp(log_prediction))
    return reduce_losses((target * ratio).sum(-1), **kwargs)


def plain_cosine(a, b, axis=-1, epsilon=1e-8):
    return (a * b).sum(axis) / jnp.sqrt((a * a).sum(axis) * (b * b).sum(axis))


PAIRS = (
    ("float32[batch, 2]", "float32[batch, 2]"),
    ("float32[8]", "float32[8]"),
    ("float32[2, batch]", "float32[2, batch]"),
)

DIFFERENTIABLE = [
    *loss_uses("mean_squared_error", *PAIRS),
    *loss_uses("l1_loss", *PAIRS),
    *loss_uses("huber", *PAIRS),
    Use("huber", PAIRS[0], {"delta": 0.4}),
    *loss_uses(
        "kl_div",
        ("float32[batch, 3]", "float32[batch, 3]"),
        ("float32[batch, 2, 3]", "float32[batch, 2, 3]"),
        ("float32[3]", "float32[3]"),
        domain={0: (-3.0, -0.1), 1: (0.1, 0.9)},
    ),
    Use("cosine_similarity", ("float32[batch, 4]", "float32[batch, 4]")),
    Use("cosine_similarity", ("float32[batch, 4]",) * 2, {"axis": 0}),
    Use("cosine_similarity", ("float32[batch, 3, 4]",) * 2, {"axis": 1}),
    Use("cosine_similarity", ("float32[4]", "float32[4]"), {"epsilon": 1e-3}),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "mean_squared_error": lambda p, t, **kwargs: reduce_losses((p - t) ** 2, **kwargs),
    "l1_loss": lambda p, t, **kwargs: reduce_losses(((p - t) ** 2) ** 0.5, **kwargs),
    "huber": plain_huber,
    "kl_div": plain_kl_div,
    "cosine_similarity": plain_cosine,
}
