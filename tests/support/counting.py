"""User code for tests of state with integers and booleans: counters of Flax nnx.

The state follows from the inputs alone, so it is the same in each mode of training.
"""

import jax.numpy as jnp
from flax import nnx

import placer
from placer import Program, layers, optimizer, place_guard

WORKERS, HETER, BATCH, KEPT, DEVICES, SETTINGS = 1, 0, 8, [], {}, {}
COMPUTED, UPDATED, OPTIMIZER = "/node:worker", "/node:worker:0/cpu", {}


class Counting(nnx.Module):
    def __init__(self, rngs):
        self.last = nnx.Linear(4, 1, rngs=rngs)
        self.steps = nnx.Variable(jnp.zeros((), jnp.int32))
        self.hash = nnx.Variable(jnp.full((2,), 7, jnp.uint32))
        self.seen = nnx.Variable(jnp.zeros(4, bool))
        self.mean = nnx.Variable(jnp.zeros(4))
        self.limit = nnx.Variable(jnp.full((), 1000, jnp.int32))
        self.evaluations = nnx.Variable(jnp.zeros((), jnp.int32))


def counting():
    return Counting(nnx.Rngs(0))


def apply(model, x, training):
    if training:
        steps = jnp.minimum(model.steps[...] + 1, model.limit[...])
        model.steps[...] = steps
        model.hash[...] = model.hash[...] * jnp.uint32(2654435761) + steps.astype(
            "uint32"
        )
        model.seen[...] |= x.max(0) > 1.5
        model.mean[...] = 0.9 * model.mean[...] + 0.1 * x.mean(0)
    else:
        model.evaluations[...] += 1  # this change is dropped
    h = jnp.where(model.seen[...], x, 1.5 * x) - model.mean[...]
    return model.last(h / (1 + 0.1 * model.steps[...]))[:, 0]


def build():
    nodes = {"worker": {"count": WORKERS, **DEVICES}, "ps": {"count": 2}}
    nodes |= {"heter": {"count": HETER}} if HETER else {}
    source = {"source": "npz:rows.npz", "batch": BATCH}
    program = Program(
        name="counting",
        precision="float64",
        nodes=nodes,
        data={"train": source, "eval": source},
        epochs=8,
        metrics=["loss"],
        parameters=[{"match": name, "trainable": False} for name in KEPT],
        predict={"outputs": ["net"]},
        **SETTINGS,
    )
    with program:
        x = layers.data("x", "float32[batch, 4]")
        y = layers.data("y", "float32[batch]")
        with place_guard(COMPUTED):
            result = placer.trace(apply, counting, x, name="net")
            loss = layers.mean_squared_error(result, y, name="loss")
        with place_guard(UPDATED):
            optimizer.SGD(0.05, **OPTIMIZER).minimize(loss)
    return program
