"""The block of flax_block.py on two GPUs of one node, each of which computes half of
the rows. The GPUs are emulated by CPU devices. pip install '.[flax]'.

placer compile specs/flax_block_gpus.py:build --out build/
placer launch build/

Final evaluation: accuracy 0.983.
"""

from flax_block import Block, block
from jax import Array

import placer
from placer import Program, layers, optimizer, place_guard


def apply(model: Block, image: Array) -> Array:
    with place_guard("/gpu:0-1"):
        return model.judge(model.attend(image))


def build() -> Program:
    program = Program(
        name="flax_block_gpus",
        nodes={"worker": {"count": 1, "devices": {"gpu": 2}}},
        emulate=True,
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
    with program, place_guard("/node:worker"):
        image = layers.data("image", "float32[batch, 64]")
        label = layers.data("label", "int32[batch]")
        # The result of a row depends on that row only, which placer proves from the
        # equations of the function: each GPU computes its own rows.
        logits = placer.trace(apply, block, image, name="logits")
        with place_guard("/gpu:0-1"):
            loss = layers.softmax_cross_entropy(logits, label, name="loss")
            layers.accuracy(logits, label, name="accuracy")
            layers.softmax(logits, name="probability")
        # Parameters are updated in host memory, as in cnn_gpus.yaml.
        with place_guard("/cpu"):
            optimizer.Adam({"cosine": {"init": 3.0e-3, "steps": 440}}).minimize(loss)
    return program
