"""User code: a classifier of Hugging Face, FlaxResNet, whose statistics are state."""

import jax.numpy as jnp
import optax
from transformers import FlaxResNetForImageClassification, ResNetConfig

CONFIG = ResNetConfig(
    embedding_size=8, hidden_sizes=[32, 64], depths=[1, 1], num_labels=3
)
MODEL = FlaxResNetForImageClassification(
    CONFIG, input_shape=(1, 16, 16, 3), dtype=jnp.result_type(float)
)


def make():
    return MODEL.params["params"]


def statistics():
    return MODEL.params["batch_stats"]


def losses(params, stats, image, label, training):
    variables = {"params": params, "batch_stats": stats}
    output = MODEL(image, variables, train=training)
    if training:
        output, variables = output
    losses = optax.softmax_cross_entropy_with_integer_labels(output.logits, label)
    return losses, variables["batch_stats"]
