"""User code for tests of state in traced functions: batch normalization and dropout."""

import jax.numpy as jnp
from flax import nnx

import placer
from placer import Program, layers, optimizer, place_guard

WORKERS, OPTIMIZER = 1, "/node:worker:0/cpu"
SEED, BATCH = 3, 8


class Normalizing(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 6, rngs=rngs)
        self.norm = nnx.BatchNorm(6, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(0.25, rngs=rngs)
        self.last = nnx.Linear(6, 1, rngs=rngs)


def normalizing():
    return Normalizing(nnx.Rngs(0))


def apply(model, x):
    h = model.drop(jnp.tanh(model.norm(model.first(x))))
    return model.last(h)[:, 0]


def build():
    program = Program(
        name="normalizing",
        precision="float64",
        seed=SEED,
        nodes={"worker": {"count": WORKERS}, "ps": {"count": 2}},
        data={
            "train": {"source": "npz:rows.npz", "batch": BATCH},
            "eval": {"source": "npz:rows.npz", "batch": BATCH},
        },
        epochs=8,
        metrics=["loss"],
    )
    with program:
        x = layers.data("x", "float32[batch, 4]")
        y = layers.data("y", "float32[batch]")
        with place_guard("/node:worker"):
            result = placer.trace(apply, normalizing, x, name="net")
            loss = layers.mean_squared_error(result, y, name="loss")
        with place_guard(OPTIMIZER):
            optimizer.SGD(0.05).minimize(loss)
    return program
