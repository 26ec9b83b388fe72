"""A convolutional network in Flax linen, trained by two workers with a parameter server.
The rows come in blocks from digits_blocks.py. pip install '.[flax]'.

placer compile specs/linen_digits.py:build --out build/
placer launch build/

`python specs/linen_digits.py` trains it, and puts the trained parameters back.

Final evaluation: accuracy 0.978.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

import placer
from placer import Program, layers, optimizer, place_guard


class Net(nn.Module):
    """Two convolutions, the mean over the image, and a dense layer."""

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(16, (3, 3))(image))
        x = nn.relu(nn.Conv(32, (3, 3), strides=2)(x))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


def make() -> dict[str, dict[str, jax.Array]]:
    """Return the variables of the network: the dict `params` of its layers."""
    return Net().init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))


def apply(variables: dict[str, dict[str, jax.Array]], image: jax.Array) -> jax.Array:
    return Net().apply(variables, image)


def build() -> Program:
    train = {"source": "python:digits_blocks:train", "batch": 64, "shuffle": True}
    program = Program(
        nodes={"worker": {"count": 2}, "ps": {"count": 1}},
        data={"train": train, "eval": {"source": "python:digits_blocks:test"}},
        epochs=10,
        metrics=["loss", "accuracy"],
        predict={"outputs": ["logits"]},
    )
    with program, place_guard("/node:worker/cpu"):
        image = layers.data("image", "float32[batch, 8, 8, 1]")
        label = layers.data("label", "int32[batch]")
        logits = placer.trace(apply, make, image, name="logits")
        loss = layers.softmax_cross_entropy(logits, label, name="loss")
        layers.accuracy(logits, label, name="accuracy")
        with place_guard("/node:ps/cpu"):
            optimizer.Adam(3e-3).minimize(loss)
    return program


if __name__ == "__main__":
    result = placer.train(build())
    variables = placer.restore(make(), result, "logits")
    one = jnp.ones((1, 8, 8, 1))
    print("class of a white image:", apply(variables, one).argmax(), result.eval)
