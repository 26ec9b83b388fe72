"""User code: two towers of Hugging Face, FlaxCLIP, and a loss over the batch."""

import jax.numpy as jnp
import optax
from flax import linen as nn
from transformers import CLIPConfig, CLIPTextConfig, CLIPVisionConfig, FlaxCLIPModel

from placer import place_guard

TOWER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "attention_dropout": 0.1,
}
TEXT = CLIPTextConfig(vocab_size=50, max_position_embeddings=8, **TOWER)
IMAGE = CLIPVisionConfig(image_size=8, patch_size=4, **TOWER)
CONFIG = CLIPConfig(TEXT.to_dict(), IMAGE.to_dict(), projection_dim=16)
MODEL = FlaxCLIPModel(CONFIG, dtype=jnp.result_type(float))


def make():
    return MODEL.params


def losses(params, tokens, image, key, training):
    output = MODEL(tokens, image, params=params, train=training, dropout_rng=key)
    own = jnp.arange(len(tokens))
    return sum(
        optax.softmax_cross_entropy_with_integer_labels(logits, own)
        for logits in (output.logits_per_text, output.logits_per_image)
    )


def by_tower(call, args, kwargs, context):
    is_text = context.module.path[:1] == ("text_model",)
    with place_guard("/node:worker:1" if is_text else ""):
        return call(*args, **kwargs)


def split_losses(params, tokens, image, key, training):
    with place_guard("/node:worker:0"), nn.intercept_methods(by_tower):
        return losses(params, tokens, image, key, training)
