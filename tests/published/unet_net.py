"""User code: the U-Net of Stable Diffusion in diffusers, with dropout."""

import jax
import jax.numpy as jnp
from diffusers import FlaxUNet2DConditionModel
from flax import linen as nn

from placer import place_guard

NET = FlaxUNet2DConditionModel(
    sample_size=8,
    block_out_channels=(32,),
    layers_per_block=1,
    down_block_types=("CrossAttnDownBlock2D",),
    up_block_types=("CrossAttnUpBlock2D",),
    attention_head_dim=4,
    cross_attention_dim=16,
    dropout=0.1,
    dtype=jnp.result_type(float),
)


def make():
    return NET.init_weights(jax.random.key(0))


def losses(params, noisy, time, text, noise, key, training):
    output = NET.apply(
        {"params": params}, noisy, time, text, train=training, rngs={"dropout": key}
    )
    return jnp.square(output.sample - noise).mean((1, 2, 3))


def by_block(call, args, kwargs, context):
    name = context.module.name or ""
    is_late = name.startswith(("up_blocks", "conv_norm_out", "conv_out"))
    with place_guard("/node:worker:1" if is_late else ""):
        return call(*args, **kwargs)


def split_losses(params, noisy, time, text, noise, key, training):
    with place_guard("/node:worker:0"), nn.intercept_methods(by_block):
        return losses(params, noisy, time, text, noise, key, training)
