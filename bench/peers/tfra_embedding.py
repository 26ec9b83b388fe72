"""The hash table of TensorFlow Recommenders Addons with Adagrad, on one core: ns of CPU per
key. Its keys are the numbers of rows.

python tfra_embedding.py ROWS BATCH DIM
"""

import os
import sys

import numpy as np
from drawn_ids import show_times, use_one_core


def main(rows: int, batch: int, dim: int) -> None:
    use_one_core()  # before TensorFlow starts its threads
    os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    import tensorflow as tf
    import tensorflow_recommenders_addons as tfra

    embedding = tfra.dynamic_embedding
    table = embedding.get_variable(
        "table", tf.int64, tf.float32, dim=dim, devices=["/CPU:0"], init_size=2 * rows
    )
    for low in range(0, rows, 1 << 20):
        keys = np.arange(low, min(low + (1 << 20), rows))
        table.upsert(keys, tf.random.uniform((keys.size, dim), -0.01, 0.01))
    rule = embedding.DynamicEmbeddingOptimizer(tf.keras.optimizers.legacy.Adagrad(0.1))
    gradient = tf.random.normal((batch, dim))
    shadow = embedding.shadow_ops
    rows_in_use = shadow.ShadowVariable(table)

    def train(ids):
        with tf.GradientTape() as tape:
            found = shadow.embedding_lookup_unique(rows_in_use, tf.constant(ids), dim)
            loss = tf.reduce_sum(found * gradient)
        (found_gradient,) = tape.gradient(loss, [rows_in_use])
        rule.apply_gradients([(found_gradient, rows_in_use)])

    show_times(rows, batch, lambda ids: table.lookup(tf.constant(ids)), train)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
