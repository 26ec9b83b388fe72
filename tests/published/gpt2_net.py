"""User code: a language model of Hugging Face, FlaxGPT2, with dropout."""

import jax.numpy as jnp
import optax
from flax import linen as nn
from transformers import FlaxGPT2LMHeadModel, GPT2Config

from placer import place_guard

CONFIG = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4)
MODEL = FlaxGPT2LMHeadModel(CONFIG, dtype=jnp.result_type(float))


def make():
    return MODEL.params


def losses(params, tokens, key, training):
    output = MODEL(tokens, params=params, train=training, dropout_rng=key)
    return optax.softmax_cross_entropy_with_integer_labels(
        output.logits[:, :-1], tokens[:, 1:]
    ).mean(1)


def by_layer(call, args, kwargs, context):
    path = context.module.path
    with place_guard("/node:worker:1" if "1" in path else ""):
        return call(*args, **kwargs)


def split_losses(params, tokens, key, training):
    with place_guard("/node:worker:0"), nn.intercept_methods(by_layer):
        return losses(params, tokens, key, training)
