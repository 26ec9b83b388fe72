"""User code for tests of `call` and `metric`: functions that models call."""

import jax
import jax.numpy as jnp


def noisy(params, state, x, *, rng, training):
    """A layer with dropout, which works row by row."""
    rows = x.reshape(x.shape[0], -1)  # raises for a batch of zero rows: -1 is ambiguous
    y = jnp.tanh(rows @ params["w"])
    if training:
        kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.7, y.shape[1:]))(rng)
        y = jnp.where(kept, y, 0.0)
    return y, {}


def centred(params, state, x, *, rng, training):
    """Subtract the mean of the batch, and compute mean distances between the rows.

    A running mean is stored as state, and used for evaluation.
    """
    mean = jnp.mean(x, axis=0)
    distances = jnp.sum((x[:, None] - x) ** 2, axis=-1)
    y = (x - (mean if training else state["mean"])) * params["scale"]
    new = 0.8 * state["mean"] + 0.2 * jax.lax.stop_gradient(mean)
    return (y, jnp.mean(distances, axis=1)), {"mean": new}


def margin(logits, label):
    """Return by how much the logit of the label exceeds the mean, as a metric."""
    own = jnp.take_along_axis(logits, label[:, None], axis=-1)[:, 0]
    return own - jnp.mean(logits, axis=-1)


def weighted(prediction, click, label):
    """Return a numerator and a denominator: rows count by their label."""
    right = (prediction > 0) == (click > 0)
    return right * label, label
