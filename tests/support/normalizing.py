"""User code for tests of state in traced functions: batch normalization and dropout.

The functions with `parts` normalize over all parts of a batch.
"""

import equinox
import flax.linen
import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

import placer
from placer import Program, layers, optimizer, place_guard

WORKERS, OPTIMIZER, PARTS = 1, "/node:worker/cpu", 2
SEED, BATCH, EVALUATED, MICROBATCHES = 3, 8, 8, 1


class Normalizing(nnx.Module):
    def __init__(self, hidden, rngs):
        self.first = nnx.Linear(4, hidden, rngs=rngs)
        self.norm = nnx.BatchNorm(hidden, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(0.25, rngs=rngs)
        self.last = nnx.Linear(hidden, 1, rngs=rngs)


def normalizing(hidden):
    return Normalizing(hidden, nnx.Rngs(0))


def apply(model, x):
    h = model.drop(jnp.tanh(model.norm(model.first(x))))
    return model.last(h)[:, 0]


class Parted(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 6, rngs=rngs)
        self.norm = nnx.BatchNorm(6, momentum=0.9, axis_name="batch", rngs=rngs)
        self.own = nnx.BatchNorm(6, momentum=0.9, rngs=rngs)  # of each part
        self.drop = nnx.Dropout(0.25, rngs=rngs)
        self.last = nnx.Linear(6, 1, rngs=rngs)


def parted():
    return Parted(nnx.Rngs(0))


def apply_parts(model, x):
    h = jnp.tanh(model.norm(model.first(x)))
    return model.last(model.drop(model.own(h)))[:, 0]


# The same in Flax linen, with the statistics as an argument.
class Linen(flax.linen.Module):
    axis: str | None = None

    @flax.linen.compact
    def __call__(self, x, training):
        norm = {"momentum": 0.9, "use_running_average": not training}
        h = flax.linen.Dense(6)(x)
        h = flax.linen.BatchNorm(axis_name=self.axis, **norm)(h)
        h = flax.linen.Dropout(0.25, deterministic=not training)(jnp.tanh(h))
        return flax.linen.Dense(1)(h)[:, 0]


def params():
    return variables()["params"]


def statistics():
    return variables()["batch_stats"]


def variables():
    return Linen().init(jax.random.key(0), jnp.zeros((1, 4)), False)


def apply_linen(params, stats, x, key, training, axis=None):
    y, new = Linen(axis).apply(
        {"params": params, "batch_stats": stats},
        x,
        training,
        mutable=["batch_stats"],
        rngs={"dropout": key},
    )
    return y, new["batch_stats"]


def apply_linen_parts(params, stats, x, key, training):
    return apply_linen(params, stats, x, key, training, "batch")


# The same in Equinox: one normalization has a flag, the other a counter, as its state.
class Stateful(equinox.Module):
    first: equinox.nn.Linear
    norm: equinox.nn.BatchNorm
    again: equinox.nn.BatchNorm
    drop: equinox.nn.Dropout
    last: equinox.nn.Linear

    def __init__(self, key):
        first, last = jax.random.split(key)
        self.first = equinox.nn.Linear(4, 6, key=first)
        self.norm = equinox.nn.BatchNorm(6, "rows", mode="ema", momentum=0.9)
        self.again = equinox.nn.BatchNorm(6, "rows", mode="batch", momentum=0.9)
        self.drop = equinox.nn.Dropout(0.25)
        self.last = equinox.nn.Linear(6, "scalar", key=last)

    def __call__(self, x, key, state):
        h, state = self.norm(self.first(x), state)
        h, state = self.again(jnp.tanh(h), state)
        return self.last(self.drop(h, key=key)), state


def stateful():
    return equinox.nn.make_with_state(Stateful)(jax.random.key(0))


def stateful_model():
    return stateful()[0]


def initial_state():
    return stateful()[1]


def apply_equinox(model, state, x, key):
    over = {"in_axes": (0, 0, None), "out_axes": (0, None), "axis_name": "rows"}
    return jax.vmap(model, **over)(x, jax.random.split(key, x.shape[0]), state)


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


def apply_equinox_parts(model, state, x):
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


def build():
    return build_by(apply, (normalizing, {"hidden": 6}))


def build_linen():
    return build_by(apply_linen, params, statistics, state="stats")


def build_equinox():
    return build_by(apply_equinox, stateful_model, initial_state, state="state")


def build_parts():
    return build_by(apply_parts, parted, **in_parts())


def build_linen_parts():
    return build_by(apply_linen_parts, params, statistics, state="stats", **in_parts())


def build_equinox_parts():
    given = {"state": "state", "axis": "parts", **in_parts()}
    return build_by(apply_equinox_parts, statistical, start, **given)


def build_contrast():
    return build_by(contrast, weights, **in_parts())


def in_parts():
    return {"batch": "replica", "parts": PARTS}


def build_by(fn, *models, **keywords):
    program = Program(
        name="normalizing",
        precision="float64",
        seed=SEED,
        nodes={"worker": {"count": WORKERS}, "ps": {"count": 2}},
        data={
            "train": {"source": "npz:rows.npz", "batch": BATCH},
            "eval": {"source": "npz:rows.npz", "batch": EVALUATED},
        },
        epochs=8,
        microbatches=MICROBATCHES,
        metrics=["loss"],
    )
    with program:
        x = layers.data("x", "float32[batch, 4]")
        y = layers.data("y", "float32[batch]")
        with place_guard("/node:worker"):
            if fn is contrast:
                loss = placer.trace(fn, *models, x, y, name="loss", **keywords)
            else:
                result = placer.trace(fn, *models, x, name="net", **keywords)
                loss = layers.mean_squared_error(result, y, name="loss")
        with place_guard(OPTIMIZER):
            optimizer.SGD(0.05).minimize(loss)
    return program
