"""A transformer block of Flax, placed from inside: attention on one worker, the MLP on
the other. It reads a digit as eight lines of eight pixels. pip install 'placer[flax]'.

placer compile specs/flax_block.py:build --out build/
placer launch build/
"""

from flax import nnx
from jax import Array

import placer
from placer import Program, layers, optimizer, place_guard

FEATURES = 32


class Block(nnx.Module):
    """A block that is normalised before its parts, and a head over what it gives."""

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
        """Each line of an image looks at the others: [batch, 64] to [batch, 8, 32]."""
        x = self.lines(image.reshape(-1, 8, 8) / 16) + self.places.embedding
        return x + self.attention(self.norm(x))

    def judge(self, x: Array) -> Array:
        """Each line by itself, then all together: [batch, 8, 32] to [batch, 10]."""
        x = x + self.narrow(nnx.gelu(self.wide(self.norm_2(x))))
        return self.head(x.reshape(-1, 8 * FEATURES))


def block() -> Block:
    """The block as it begins. A node makes it again, by its types alone."""
    return Block(nnx.Rngs(0))


def apply(model: Block, image: Array) -> Array:
    """The block with its places; without placer it runs just as well."""
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
    )
    with program:
        image = layers.data("image", "float32[batch, 64]")
        label = layers.data("label", "int32[batch]")
        with place_guard("/node:worker/cpu"):
            logits = placer.trace(apply, block, image, name="logits")
            with place_guard("/node:worker:1"):
                loss = layers.softmax_cross_entropy(logits, label, name="loss")
                layers.accuracy(logits, label, name="accuracy")
        optimizer.Adam({"cosine": {"init": 3.0e-3, "steps": 440}}).minimize(loss)
    return program
