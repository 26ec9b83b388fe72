"""User code for tests of state of Haiku and Keras: batch normalization, dropout, counters."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp

import placer
from placer import Program, layers, optimizer, place_guard

WORKERS, UPDATED = 1, "/node:worker:0/cpu"
SEED, BATCH = 3, 8


def haiku_network():
    import haiku

    def net(x, training):
        h = haiku.BatchNorm(True, True, 0.9)(haiku.Linear(6)(x), training)
        count = haiku.get_state("count", [], jnp.int32, init=jnp.zeros)
        if training:
            h = haiku.dropout(haiku.next_rng_key(), 0.25, h)
            haiku.set_state("count", count + 1)
        return haiku.Linear(1)(jnp.tanh(h))[:, 0]

    return haiku.transform_with_state(net)


def haiku_values():
    return haiku_network().init(jax.random.key(0), jnp.zeros((2, 4)), True)


def haiku_params():
    return haiku_values()[0]


def haiku_state():
    return haiku_values()[1]


def haiku_apply(params, state, x, key, training):
    return haiku_network().apply(params, state, key, x, training)


def keras_model():
    import keras

    keras.utils.clear_session()  # the same names in each module of one process
    keras.utils.set_random_seed(0)
    dense, last = (
        keras.layers.Dense(6, name="first"),
        keras.layers.Dense(1, name="last"),
    )
    norm = keras.layers.BatchNormalization(momentum=0.9, name="norm")
    drop = keras.layers.Dropout(0.25, seed=5, name="drop")
    inputs = keras.layers.Input((4,))
    return keras.Sequential([inputs, dense, norm, drop, last], name="net")


MODELS = {}


def keras_made():
    if "keras" not in MODELS:
        with jax.ensure_compile_time_eval():
            MODELS["keras"] = keras_model()
    return MODELS["keras"]


def keras_params():
    return keras_made().trainable_variables


def keras_state():
    return keras_made().non_trainable_variables


def keras_apply(params, state, x, training):
    y, new = keras_made().stateless_call(params, state, x, training=training)
    return y[:, 0], new


def build(library):
    program = Program(
        name="stateful",
        seed=SEED,
        nodes={"worker": {"count": WORKERS}, "ps": {"count": 2}},
        data={
            "train": {"source": "npz:rows.npz", "batch": BATCH},
            "eval": {"source": "npz:rows.npz", "batch": BATCH},
        },
        epochs=8,
        metrics=["loss"],
        predict={"outputs": ["net"]},
    )
    fn, params, state = (
        globals()[f"{library}_{name}"] for name in ("apply", "params", "state")
    )
    with program:
        x = layers.data("x", "float32[batch, 4]")
        y = layers.data("y", "float32[batch]")
        with place_guard("/node:worker"):
            result = placer.trace(fn, params, state, x, name="net", state="state")
            loss = layers.mean_squared_error(result, y, name="loss")
        with place_guard(UPDATED):
            optimizer.SGD(0.05).minimize(loss)
    return program


def build_haiku():
    return build("haiku")


def build_keras():
    return build("keras")
