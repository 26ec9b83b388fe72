"""User code: a DLRM of Keras Recommenders."""

import keras
import keras_rs
import optax

dense = keras.Input((4,), name="dense")
ids = keras.Input((3,), dtype="int32", name="ids")
bottom = keras.layers.Dense(8, activation="relu", name="bottom")(dense)
embedded = keras.layers.Embedding(20, 8, name="table")(ids)
pairs = keras_rs.layers.DotInteraction(name="pairs")(
    [bottom, *(embedded[:, i] for i in range(3))]
)
crossed = keras_rs.layers.FeatureCross(name="cross")(
    keras.layers.Concatenate(name="joined")([bottom, pairs])
)
hidden = keras.layers.Dropout(0.2, name="drop")(crossed)
MODEL = keras.Model(
    [dense, ids], keras.layers.Dense(1, name="top")(hidden), name="dlrm"
)


def make():
    return MODEL.trainable_variables


def state():
    return MODEL.non_trainable_variables


def losses(variables, state, dense, ids, clicked, training):
    logits, state = MODEL.stateless_call(
        variables, state, [dense, ids], training=training
    )
    return optax.sigmoid_binary_cross_entropy(logits[:, 0], clicked), state
