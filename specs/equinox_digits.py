"""A recurrent network in Equinox reads a digit line by line. Guards in its code split it:
the GRU runs on one worker, the head on the other. pip install '.[equinox]'.

placer compile specs/equinox_digits.py:build --out build/
placer launch build/

`python specs/equinox_digits.py` trains it, and puts the trained parameters back.

Final evaluation: accuracy 0.975.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

import placer
from placer import Program, layers, optimizer, place_guard


class Net(eqx.Module):
    """A GRU over the eight lines of an image, [8, 8], and a head for ten classes."""

    cell: eqx.nn.GRUCell
    head: eqx.nn.MLP

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(8, 64, key=keys[0])
        self.head = eqx.nn.MLP(64, 10, 64, 1, key=keys[1])

    def __call__(self, lines: jax.Array) -> jax.Array:
        with place_guard("/node:worker:0"):
            state, _ = jax.lax.scan(
                lambda state, line: (self.cell(line, state), None), jnp.zeros(64), lines
            )
        with place_guard("/node:worker:1"):
            return self.head(state)


def make() -> Net:
    return Net(jax.random.key(0))


def apply(net: Net, image: jax.Array) -> jax.Array:
    return jax.vmap(net)(image.reshape(-1, 8, 8) / 16)


def build() -> Program:
    digits = {"source": "sklearn:digits", "batch": 64}
    program = Program(
        nodes={"worker": {"count": 2}},
        data={
            "train": {**digits, "split": "train", "shuffle": True},
            "eval": {**digits, "split": "test"},
        },
        epochs=20,
        metrics=["loss", "accuracy"],
        predict={"outputs": ["logits"]},
    )
    with program, place_guard("/node:worker/cpu"):
        image = layers.data("image", "float32[batch, 64]")
        label = layers.data("label", "int32[batch]")
        logits = placer.trace(apply, make, image, name="logits")
        with place_guard("/node:worker:1"):
            loss = layers.softmax_cross_entropy(logits, label, name="loss")
            layers.accuracy(logits, label, name="accuracy")
        optimizer.Adam(5e-3).minimize(loss)
    return program


if __name__ == "__main__":
    result = placer.train(build())
    net = placer.restore(make(), result, "logits")
    print("class of a white image:", net(jnp.ones((8, 8))).argmax(), result.eval)
