"""A regression in Haiku: how far diabetes has progressed after a year. Two workers train
with a parameter server. pip install '.[haiku]'.

placer compile specs/haiku_diabetes.py:build --out build/
placer launch build/

`python specs/haiku_diabetes.py` trains it, and puts the trained parameters back.

Final evaluation: squared error 0.355.
"""

import haiku as hk
import jax
import jax.numpy as jnp

import placer
from placer import Program, layers, optimizer, place_guard


def forward(x: jax.Array) -> jax.Array:
    """Return the predicted progression in hundreds, [batch]."""
    return hk.nets.MLP([32, 1], activation=jnp.tanh, name="mlp")(20 * x)[:, 0]


COLUMNS = {"x": "data", "y": "target"}
NET = hk.without_apply_rng(hk.transform(forward))


def make() -> hk.Params:
    return NET.init(jax.random.key(0), jnp.zeros((1, 10)))


def squares(params: hk.Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the squared error of each row, [batch]."""
    return (NET.apply(params, x) - y / 100) ** 2


def build() -> Program:
    diabetes = {"source": "sklearn:diabetes", "batch": 32, "columns": COLUMNS}
    program = Program(
        nodes={"worker": {"count": 2}, "ps": {"count": 1}},
        data={
            "train": {**diabetes, "split": "train", "shuffle": True},
            "eval": {**diabetes, "split": "test"},
        },
        epochs=8,
        metrics=["loss"],
    )
    with program, place_guard("/node:worker/cpu"):
        x = layers.data("x", "float32[batch, 10]")
        y = layers.data("y", "float32[batch]")
        loss = layers.mean(placer.trace(squares, make, x, y, name="net"), name="loss")
        with place_guard("/node:ps/cpu"):
            optimizer.Adam(1e-2).minimize(loss)
    return program


if __name__ == "__main__":
    result = placer.train(build())
    params = placer.restore(make(), result, "net")
    print(
        "an average patient:", 100 * NET.apply(params, jnp.zeros((1, 10))), result.eval
    )
