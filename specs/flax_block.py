"""A transformer block in Flax with guards: attention runs on one worker, the MLP on the
other. It reads a digit as eight lines of eight pixels. pip install '.[flax]'.

placer compile specs/flax_block.py:build --out build/
placer launch build/

Final evaluation: accuracy 0.983.
"""

from flax import nnx
from jax import Array

import placer
from placer import Program, layers, optimizer, place_guard

FEATURES = 32


class Block(nnx.Module):
    """A transformer block with pre-normalization, and a classification head."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.lines = nnx.Linear(8, FEATURES, rngs=rngs)
        self.places = nnx.Embed(8, FEATURES, rngs=rngs)
        self.norm = nnx.LayerNorm(FEATURES, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads=4, in_features=FEATURES, decode=False, rngs=rngs
        )
        self.norm_2 = nnx.LayerNorm(FEATURES, rngs=rngs)
        self.wide = nnx.Linear(FEATURES, 4 * FEATURES, rngs=rngs)
        self.narrow = nnx.Linear(4 * FEATURES, FEATURES, rngs=rngs)
        self.head = nnx.Linear(8 * FEATURES, 10, rngs=rngs)

    def attend(self, image: Array) -> Array:
        """Attention between the lines of an image: [batch, 64] to [batch, 8, 32]."""
        x = self.lines(image.reshape(-1, 8, 8) / 16) + self.places.embedding
        return x + self.attention(self.norm(x))

    def judge(self, x: Array) -> Array:
        """The MLP of each line, then the head: [batch, 8, 32] to [batch, 10]."""
        x = x + self.narrow(nnx.gelu(self.wide(self.norm_2(x))))
        return self.head(x.reshape(-1, 8 * FEATURES))


def block() -> Block:
    """Return the initial block. A node calls this again, for its types only."""
    return Block(nnx.Rngs(0))


def apply(model: Block, image: Array) -> Array:
    """Apply the block with places; outside of placer the guards have no effect."""
    with place_guard("/node:worker:0"):
        x = model.attend(image)
    with place_guard("/node:worker:1"):
        return model.judge(x)


def build() -> Program:
    program = Program(
        name="flax_block",
        nodes={"worker": {"count": 2}},
        data={
            "train": {
                "source": "sklearn:digits",
                "split": "train",
                "batch": 64,
                "shuffle": True,
                "seed": 7,
            },
            "eval": {"source": "sklearn:digits", "split": "test"},
        },
        epochs=20,
        metrics=["loss", "accuracy"],
        predict={"outputs": ["probability"]},
    )
    with program:
        image = layers.data("image", "float32[batch, 64]")
        label = layers.data("label", "int32[batch]")
        with place_guard("/node:worker/cpu"):
            logits = placer.trace(apply, block, image, name="logits")
            with place_guard("/node:worker:1"):
                loss = layers.softmax_cross_entropy(logits, label, name="loss")
                layers.accuracy(logits, label, name="accuracy")
                layers.softmax(logits, name="probability")
        optimizer.Adam({"cosine": {"init": 3.0e-3, "steps": 440}}).minimize(loss)
    return program
