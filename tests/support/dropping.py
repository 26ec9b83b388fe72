"""User code for tests of random numbers in traced functions.

Row r of `x` is one-hot, so the gradient of `w[r]` is the mask of row r.
"""

import equinox
import jax
import jax.numpy as jnp
from flax import nnx

import placer
from placer import Program, layers, optimizer, place_guard

WORKERS, ROWS, WIDTH, SEED = 1, 13, 64, 0
RATE, MIXED = 0.25, False
PLACE, FIRST, SECOND, UPDATED = "/node:worker", "", "", "/node:worker:0/cpu"
DEVICES, SETTINGS, OPTIMIZER = {}, {}, {}


class Dropped(nnx.Module):
    def __init__(self, rngs):
        self.w = nnx.Param(jnp.ones((ROWS, WIDTH)))
        self.v = nnx.Param(jnp.ones((ROWS, WIDTH)))
        self.first = nnx.Dropout(RATE, rngs=rngs)
        self.second = nnx.Dropout(RATE, rngs=rngs)


def nnx_model():
    return Dropped(nnx.Rngs(0))


def by_streams(model, x):
    with place_guard(FIRST):
        first = model.first(x @ model.w).sum(-1)
    with place_guard(SECOND):
        return first + model.second(x @ model.v).sum(-1)


class Pair(equinox.Module):
    w: jax.Array
    v: jax.Array
    drop: equinox.nn.Dropout


def equinox_model():
    ones = jnp.ones((ROWS, WIDTH))
    return Pair(ones, ones + 0, equinox.nn.Dropout(RATE))


def by_key(model, x, key):
    first, second = jax.random.split(key)
    return (
        model.drop(x @ model.w, key=first) + model.drop(x @ model.v, key=second)
    ).sum(-1)


def by_row_keys(model, x, *, key):
    def of_row(row, key):
        first, second = jax.random.split(key)
        return model.drop(row @ model.w, key=first) + model.drop(
            row @ model.v, key=second
        )

    return jax.vmap(of_row)(x, jax.random.split(key, len(x))).sum(-1)


def by_training(model, x, key, training):
    """Draw in a scan, and mix the rows, so that the function is whole."""

    def layer(key, w):
        key, now = jax.random.split(key)
        kept = jax.random.bernoulli(now, 1 - RATE, (len(x), WIDTH))
        return key, jnp.where(kept, x @ w / (1 - RATE), 0).sum(-1)

    if not training:
        return (x @ (model.w + model.v)).sum(-1)
    parts = jax.lax.scan(layer, key, jnp.stack([model.w, model.v]))[1]
    y = parts.sum(0)
    return y - y.mean() + jax.lax.stop_gradient(y.mean()) if MIXED else y


MODELS = {
    "by_streams": (by_streams, nnx_model),
    "by_key": (by_key, equinox_model),
    "by_row_keys": (by_row_keys, equinox_model),
    "by_training": (by_training, equinox_model),
}


def build(which):
    fn, model = MODELS[which]
    program = Program(
        name="dropping",
        precision="float64",
        seed=SEED,
        nodes={"worker": {"count": WORKERS, **DEVICES}},
        data={
            "train": {
                "source": "npz:rows.npz",
                "batch": 20 if DEVICES else 18,
                "remainder": "keep",
            },
            "eval": {"source": "npz:rows.npz", "batch": 8 if DEVICES else 6},
        },
        epochs=3,
        metrics=["loss"],
        **SETTINGS,
    )
    with program:
        x = layers.data("x", f"float32[batch, {ROWS}]")
        with place_guard(PLACE):
            y = placer.trace(fn, model, x, name="net")
            loss = layers.mean(y, name="loss")
        with place_guard(UPDATED):
            optimizer.SGD(1.0, **OPTIMIZER).minimize(loss)
    return program


def build_by_streams():
    return build("by_streams")


def build_by_key():
    return build("by_key")


def build_by_row_keys():
    return build("by_row_keys")


def build_by_training():
    return build("by_training")
