"""User code: an autoencoder whose codes are those of Haiku's `VectorQuantizerEMA`."""

import haiku as hk
import jax
import jax.numpy as jnp


@hk.transform_with_state
def net(x, training):
    code = hk.nets.MLP([16, 4], name="encoder")(x)
    quantizer = hk.nets.VectorQuantizerEMA(4, 8, commitment_cost=0.25, decay=0.9)
    quantized = quantizer(code, is_training=training)
    decoded = hk.nets.MLP([16, 6], name="decoder")(quantized["quantize"])
    return ((decoded - x) ** 2).mean(-1) + quantized["loss"]


def make():
    return net.init(jax.random.key(0), jnp.zeros((1, 6)), True)[0]


def state():
    return net.init(jax.random.key(0), jnp.zeros((1, 6)), True)[1]


def losses(params, state, x, training):
    return net.apply(params, state, None, x, training)
