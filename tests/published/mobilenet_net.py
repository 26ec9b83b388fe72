"""User code: MobileNet of Keras, with statistics of batches and dropout."""

import keras
import optax

MODEL = keras.applications.MobileNet(
    (32, 32, 3),
    alpha=0.25,
    dropout=0.2,
    weights=None,
    classes=3,
    classifier_activation=None,
    name="mobilenet",
)


def make():
    return MODEL.trainable_variables


def state():
    return MODEL.non_trainable_variables


def losses(variables, state, image, label, training):
    logits, state = MODEL.stateless_call(variables, state, image, training=training)
    return optax.softmax_cross_entropy_with_integer_labels(logits, label), state
