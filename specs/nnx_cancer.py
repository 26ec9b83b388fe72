"""A residual network in Flax nnx on the tumours of scikit-learn, trained by two workers
that sum their gradients without a server. The function computes the loss of each row.
pip install '.[flax]'.

placer compile specs/nnx_cancer.py:build --out build/
placer launch build/

`python specs/nnx_cancer.py` trains it, and puts the trained parameters back.

Final evaluation: AUC 0.987.
"""

import jax
import jax.numpy as jnp
from flax import nnx

import placer
from placer import Program, layers, optimizer


class Net(nnx.Module):
    """A layer of 32 units, two residual layers with normalization, and a logit."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(30, 32, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(32, rngs=rngs) for _ in range(2)])
        self.layers = nnx.List([nnx.Linear(32, 32, rngs=rngs) for _ in range(2)])
        self.last = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.first(jnp.log1p(x))
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + nnx.relu(layer(norm(x)))
        return self.last(x)[:, 0]


def make() -> Net:
    return Net(nnx.Rngs(0))


def losses(net: Net, x: jax.Array, benign: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the cross-entropy and the probability of each row, [batch]."""
    logit = net(x)
    return jax.nn.softplus(logit) - logit * benign, jax.nn.sigmoid(logit)


def build() -> Program:
    tumours = {"source": "sklearn:breast_cancer", "batch": 32}
    program = Program(
        nodes={"worker": {"count": 2}},
        data={
            "train": {**tumours, "split": "train", "shuffle": True},
            "eval": {**tumours, "split": "test"},
        },
        epochs=40,
        metrics=["loss", "auc"],
    )
    with program:
        x = layers.data("x", "float32[batch, 30]")
        benign = layers.data("benign", "int32[batch]")
        row_losses, score = placer.trace(losses, make, x, benign, name="net")
        loss = layers.mean(row_losses, name="loss")
        layers.auc(score, benign, name="auc")
        optimizer.AdamW(1e-2).minimize(loss)
    return program


if __name__ == "__main__":
    result = placer.train(build())
    net = placer.restore(make(), result, "net")
    print("logit of a row of ones:", net(jnp.ones((1, 30))), result.eval)
