"""User code: a classifier of Hugging Face, FlaxViT, with dropout."""

import jax.numpy as jnp
import optax
from transformers import FlaxViTForImageClassification, ViTConfig

CONFIG = ViTConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    image_size=8,
    patch_size=4,
    num_labels=3,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
)
MODEL = FlaxViTForImageClassification(CONFIG, dtype=jnp.result_type(float))


def make():
    return MODEL.params


def losses(params, image, label, key, training):
    output = MODEL(image, params, train=training, dropout_rng=key)
    return optax.softmax_cross_entropy_with_integer_labels(output.logits, label)
