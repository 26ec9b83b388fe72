"""User code: a language model of mamba2-jax, in Flax nnx."""

import optax
from flax import nnx
from mamba2_jax import Mamba2Config, Mamba2ForCausalLM

from placer import place_guard

CONFIG = Mamba2Config(
    vocab_size=50,
    hidden_size=32,
    state_size=8,
    head_dim=16,
    chunk_size=4,
    num_hidden_layers=2,
)


def make():
    return Mamba2ForCausalLM(CONFIG, rngs=nnx.Rngs(0))


def losses(model, tokens):
    logits = model(tokens)["logits"]
    return optax.softmax_cross_entropy_with_integer_labels(
        logits[:, :-1], tokens[:, 1:]
    ).mean(1)


def split_losses(model, tokens):
    with place_guard("/node:worker:0"):
        hidden = model.backbone(input_ids=tokens)["last_hidden_state"]
    with place_guard("/node:worker:1"):
        logits = hidden @ model.backbone.embedder.embedding[:].T
        return optax.softmax_cross_entropy_with_integer_labels(
            logits[:, :-1], tokens[:, 1:]
        ).mean(1)
