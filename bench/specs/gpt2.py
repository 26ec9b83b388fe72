"""GPT-2 of transformers with 23 million parameters: 6 layers of 512, dropout 0.1.

pip install "transformers<5"

placer compile bench/specs/gpt2.py:build --out build/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from transformers import FlaxGPT2LMHeadModel, GPT2Config

import placer
from placer import Program, layers, optimizer, place_guard

ROWS, BATCH, LENGTH, WORDS = 256, 8, 32, 8192
RATE = 1e-3
CONFIG = GPT2Config(vocab_size=WORDS, n_positions=128, n_embd=512, n_layer=6, n_head=8)
MODEL = FlaxGPT2LMHeadModel(CONFIG, input_shape=(1, LENGTH), _do_init=False)


def make() -> Any:
    return MODEL.init_weights(jax.random.key(0), (1, LENGTH))


def losses(params: Any, tokens: jax.Array, key: jax.Array, training: bool) -> jax.Array:
    """Return the mean cross-entropy of each row's next words, [batch]."""
    outputs = MODEL(tokens, params=params, dropout_rng=key, train=training)
    logits = outputs.logits[:, :-1]
    chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=2)[..., 0]
    return (jax.nn.logsumexp(logits, axis=2) - chosen).mean(axis=1)


def train() -> Iterator[dict[str, np.ndarray]]:
    """Yield one block of random words, the same in every process."""
    random = np.random.default_rng(0)
    yield {"tokens": random.integers(0, WORDS, (ROWS, LENGTH), np.int32)}


def build() -> Program:
    data = {"train": {"source": "python:gpt2:train", "batch": BATCH}}
    program = Program(nodes={"worker": {"count": 1}}, data=data, epochs=100)
    with program, place_guard("/node:worker/cpu"):
        tokens = layers.data("tokens", f"int32[batch, {LENGTH}]")
        rows = placer.trace(losses, make, tokens, name="net")
        optimizer.Adam(RATE).minimize(layers.mean(rows, name="loss"))
    return program
