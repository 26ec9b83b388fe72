"""User code: ResNet-18 of jaxonmodels, with statistics of batches in an `eqx.nn.State`."""

import equinox as eqx
import jax
import optax
from jaxonmodels.models import resnet


def both():
    return eqx.nn.make_with_state(resnet.ResNet)(
        block=resnet.BasicBlock,
        layers=[1, 1, 1, 1],
        n_classes=3,
        zero_init_residual=False,
        groups=1,
        width_per_group=64,
        replace_stride_with_dilation=None,
        key=jax.random.key(0),
    )


def make():
    return both()[0]


def state():
    return both()[1]


def losses(net, state, image, label):
    logits, state = jax.vmap(
        net, axis_name="batch", in_axes=(0, None), out_axes=(0, None)
    )(image, state)
    return optax.softmax_cross_entropy_with_integer_labels(logits, label), state
