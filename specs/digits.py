"""The model of digits.yaml in Python. Both compile to the same programs.

placer compile specs/digits.py:build --out build/
placer launch build/
placer to-yaml specs/digits.py:build

Final evaluation: accuracy 0.989.
"""

from placer import Program, append_backward, layers, optimizer, place_guard


def build() -> Program:
    program = Program(
        name="digits",
        # The cluster. A node has one CPU unless `devices` says otherwise.
        nodes={"worker": {"count": 2, "devices": {"cpu": 1}}, "ps": {"count": 2}},
        # Each of the two workers reads 64 of the 128 rows of a batch.
        data={
            "train": {
                "source": "sklearn:digits",
                "split": "train",
                "batch": 128,
                "shuffle": True,
                "seed": 7,
            },
            "eval": {"source": "sklearn:digits", "split": "test", "batch": 128},
        },
        parameters=[{"match": "logits.b", "init": {"constant": 0.0}}],
        epochs=20,
        metrics=["loss", "accuracy"],
        predict={"outputs": ["probability"]},
        clip={"global_norm": 1.0},
    )
    with program:
        # These ops run on every worker, on the rows of that worker.
        with place_guard("/node:worker/cpu"):
            image = layers.data("image", "float32[batch, 64]")
            label = layers.data("label", "int32[batch]")
            h1 = layers.fc(image, 128, activation="relu", name="h1")
            logits = layers.fc(h1, 10, name="logits")
            loss = layers.softmax_cross_entropy(logits, label, name="loss")
            layers.accuracy(logits, label, name="accuracy")
            layers.softmax(logits, name="probability")
            append_backward(loss)

        # The place of the optimizer decides how gradients are summed: on servers.
        with place_guard("/node:ps/cpu"):
            rate = {"cosine": {"init": 1.0e-2, "steps": 220}}
            optimizer.Adam(rate).minimize(loss)
    return program
