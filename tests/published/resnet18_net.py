"""User code: ResNet18 of flaxmodels, whose statistics are state."""

import flaxmodels
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from placer import place_guard

NET = flaxmodels.ResNet18(
    output="logits", pretrained=None, num_classes=3, dtype=jnp.result_type(float)
)


def variables():
    return NET.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)), train=False)


def make():
    return variables()["params"]


def statistics():
    return variables()["batch_stats"]


def losses(params, stats, image, label, training):
    variables = {"params": params, "batch_stats": stats}
    logits, new = NET.apply(variables, image, training, mutable=["batch_stats"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, label)
    return losses, new["batch_stats"]


def by_block(call, args, kwargs, context):
    name = context.module.name or ""
    is_late = name.startswith("BasicBlock") and int(name[-1]) >= 4
    with place_guard("/node:worker:1" if is_late else ""):
        return call(*args, **kwargs)


def split_losses(params, stats, image, label, training):
    with place_guard("/node:worker:0"), nn.intercept_methods(by_block):
        return losses(params, stats, image, label, training)
