"""Functions that models call, as a user would write them."""

import jax
import jax.numpy as jnp


def noisy(params, state, x, *, rng, training):
    """Row by row: a layer that drops some of what it gives."""
    rows = x.reshape(x.shape[0], -1)  # which a batch without rows does not have
    y = jnp.tanh(rows @ params["w"])
    if training:
        kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.7, y.shape[1:]))(rng)
        y = jnp.where(kept, y, 0.0)
    return y, {}


def centred(params, state, x, *, rng, training):
    """Of the whole batch: less its mean, which is kept for evaluation; and how far the
    rows are from each other."""
    mean = jnp.mean(x, axis=0)
    distances = jnp.sum((x[:, None] - x) ** 2, axis=-1)
    y = (x - (mean if training else state["mean"])) * params["scale"]
    new = 0.8 * state["mean"] + 0.2 * jax.lax.stop_gradient(mean)
    return (y, jnp.mean(distances, axis=1)), {"mean": new}
