"""User code: a classifier of Hugging Face, FlaxBert, with dropout."""

import jax.numpy as jnp
import optax
from flax import linen as nn
from transformers import BertConfig, FlaxBertForSequenceClassification

from placer import place_guard

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=16,
    num_labels=3,
)
MODEL = FlaxBertForSequenceClassification(CONFIG, dtype=jnp.result_type(float))


def make():
    return MODEL.params


def losses(params, tokens, mask, label, key, training):
    output = MODEL(tokens, mask, params=params, train=training, dropout_rng=key)
    return optax.softmax_cross_entropy_with_integer_labels(output.logits, label)


def by_layer(call, args, kwargs, context):
    path = context.module.path
    place = "/node:worker:1" if "1" in path or "classifier" in path else ""
    with place_guard(place):
        return call(*args, **kwargs)


def split_losses(params, tokens, mask, label, key, training):
    with place_guard("/node:worker:0"), nn.intercept_methods(by_layer):
        return losses(params, tokens, mask, label, key, training)
