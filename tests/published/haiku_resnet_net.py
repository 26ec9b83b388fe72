"""User code: a residual network of Haiku, with statistics of batches."""

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from placer import place_guard


@hk.transform_with_state
def net(image, training):
    resnet = hk.nets.ResNet(
        **(hk.nets.ResNet.CONFIGS[18] | {"channels_per_group": (4, 4, 8, 8)}),
        num_classes=3,
        initial_conv_config={"output_channels": 4, "stride": 1, "kernel_shape": 3},
    )
    return resnet(image, is_training=training)


def make():
    return net.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)), True)[0]


def state():
    return net.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)), True)[1]


def losses(params, state, image, label, training):
    logits, state = net.apply(params, state, None, image, training)
    return optax.softmax_cross_entropy_with_integer_labels(logits, label), state


def by_group(call, args, kwargs, context):
    name = context.module.name if context.method_name == "__call__" else ""
    deep = name in ("block_group_2", "block_group_3", "logits")
    with place_guard("/node:worker:1" if deep else ""):
        return call(*args, **kwargs)


def split_losses(params, state, image, label, training):
    with place_guard("/node:worker:0"), hk.intercept_methods(by_group):
        return losses(params, state, image, label, training)
