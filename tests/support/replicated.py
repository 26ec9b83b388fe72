"""User code for tests of parts of a batch: normalization over all parts, and dropout."""

import equinox
import flax.linen
import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

import placer
from placer import Program, layers, optimizer, place_guard

WORKERS, OPTIMIZER, PARTS = 1, "/node:worker/cpu", 2
SEED, BATCH, EVALUATED = 3, 8, 8


class Replicated(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 6, rngs=rngs)
        self.norm = nnx.BatchNorm(6, momentum=0.9, axis_name="batch", rngs=rngs)
        self.own = nnx.BatchNorm(6, momentum=0.9, rngs=rngs)  # of each part
        self.drop = nnx.Dropout(0.25, rngs=rngs)
        self.last = nnx.Linear(6, 1, rngs=rngs)


def replicated():
    return Replicated(nnx.Rngs(0))


def apply(model, x):
    h = jnp.tanh(model.norm(model.first(x)))
    return model.last(model.drop(model.own(h)))[:, 0]


# The same in Flax linen, with the statistics as an argument.
class Linen(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x, training):
        norm = {"momentum": 0.9, "use_running_average": not training}
        h = flax.linen.Dense(6)(x)
        h = jnp.tanh(flax.linen.BatchNorm(axis_name="batch", **norm)(h))
        h = flax.linen.Dropout(0.25, deterministic=not training)(h)
        return flax.linen.Dense(1)(h)[:, 0]


def params():
    return variables()["params"]


def statistics():
    return variables()["batch_stats"]


def variables():
    return Linen().init(jax.random.key(0), jnp.zeros((1, 4)), False)


def apply_linen(params, stats, x, key, training):
    y, new = Linen().apply(
        {"params": params, "batch_stats": stats},
        x,
        training,
        mutable=["batch_stats"],
        rngs={"dropout": key},
    )
    return y, new["batch_stats"]


# In Equinox, whose vmap has an axis of its own.
class Statistical(equinox.Module):
    first: equinox.nn.Linear
    norm: equinox.nn.BatchNorm
    last: equinox.nn.Linear

    def __init__(self):
        keys = jax.random.split(jax.random.key(0))
        axes = ("parts", "batch")
        self.first = equinox.nn.Linear(4, 6, key=keys[0])
        self.norm = equinox.nn.BatchNorm(6, axes, mode="batch", momentum=0.9)
        self.last = equinox.nn.Linear(6, "scalar", key=keys[1])

    def __call__(self, x, state):
        h, state = self.norm(self.first(x), state)
        return self.last(jnp.tanh(h)), state


def statistical():
    return equinox.nn.make_with_state(Statistical)()[0]


def start():
    return equinox.nn.make_with_state(Statistical)()[1]


def apply_equinox(model, state, x):
    axes = {"in_axes": (0, None), "out_axes": (0, None)}
    return jax.vmap(model, axis_name="batch", **axes)(x, state)


def weights():
    return {"w": jnp.linspace(-1, 1, 12).reshape(4, 3), "scale": jnp.ones(3)}


def contrast(params, x, y):
    """Return one loss for the whole batch: each row against the rows of all parts."""
    h = jnp.tanh(x @ params["w"]) * params["scale"]
    logits = h @ lax.all_gather(h, "batch", tiled=True).T
    own = lax.axis_index("batch") * len(h) + jnp.arange(len(h))
    likely = jax.nn.log_softmax(logits)[jnp.arange(len(h)), own]
    return lax.pmean((likely * y).mean(), "batch")


def program_of():
    return Program(
        name="replicated",
        precision="float64",
        seed=SEED,
        nodes={"worker": {"count": WORKERS}, "ps": {"count": 2}},
        data={
            "train": {"source": "npz:rows.npz", "batch": BATCH},
            "eval": {"source": "npz:rows.npz", "batch": EVALUATED},
        },
        epochs=8,
        metrics=["loss"],
    )


def build():
    return build_by(apply, replicated)


def build_linen():
    return build_by(apply_linen, params, statistics, state="stats")


def build_equinox():
    return build_by(apply_equinox, statistical, start, state="state", axis="parts")


def build_by(fn, *models, **keywords):
    program = program_of()
    with program:
        x = layers.data("x", "float32[batch, 4]")
        y = layers.data("y", "float32[batch]")
        with place_guard("/node:worker"):
            result = placer.trace(
                fn, *models, x, name="net", batch="replica", parts=PARTS, **keywords
            )
            loss = layers.mean_squared_error(result, y, name="loss")
        with place_guard(OPTIMIZER):
            optimizer.SGD(0.05).minimize(loss)
    return program


def build_contrast():
    program = program_of()
    with program:
        x = layers.data("x", "float32[batch, 4]")
        y = layers.data("y", "float32[batch]")
        with place_guard("/node:worker"):
            given = {"batch": "replica", "parts": PARTS}
            loss = placer.trace(contrast, weights, x, y, name="loss", **given)
        with place_guard(OPTIMIZER):
            optimizer.SGD(0.05).minimize(loss)
    return program
