"""A convolutional network in Keras on JAX, trained by two workers without a server. The
rows come in blocks from digits_blocks.py. pip install '.[keras]'.

placer compile specs/keras_digits.py:build --out build/
placer launch build/

`python specs/keras_digits.py` trains it, and puts the trained weights back.

Final evaluation: accuracy 0.98.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras

import placer
from placer import Program, layers, optimizer

# Names of layers are names of parameters. Keras numbers the layers without a name.
MODEL = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu", name="conv"),
        keras.layers.Flatten(name="flatten"),
        keras.layers.Dense(10, name="head"),
    ],
    name="net",
)


def make() -> list[keras.Variable]:
    return MODEL.trainable_variables


def apply(variables: list[jax.Array], image: jax.Array) -> jax.Array:
    logits, _ = MODEL.stateless_call(variables, [], image, training=False)
    return logits


def build() -> Program:
    train = {"source": "python:digits_blocks:train", "batch": 64, "shuffle": True}
    program = Program(
        nodes={"worker": {"count": 2}},
        data={"train": train, "eval": {"source": "python:digits_blocks:test"}},
        epochs=10,
        metrics=["loss", "accuracy"],
        predict={"outputs": ["logits"]},
    )
    with program:
        image = layers.data("image", "float32[batch, 8, 8, 1]")
        label = layers.data("label", "int32[batch]")
        logits = placer.trace(apply, make, image, name="logits")
        loss = layers.softmax_cross_entropy(logits, label, name="loss")
        layers.accuracy(logits, label, name="accuracy")
        optimizer.Adam(3e-3).minimize(loss)
    return program


if __name__ == "__main__":
    result = placer.train(build())
    placer.restore(MODEL, result, "logits")
    white = jax.numpy.ones((1, 8, 8, 1))
    print("class of a white image:", MODEL(white).argmax(), result.eval)
