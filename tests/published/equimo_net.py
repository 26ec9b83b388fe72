"""User code: a vision transformer of equimo, with dropout and stochastic depth."""

import equimo.models
import equinox as eqx
import jax
import optax

from placer import place_guard


def make():
    return equimo.models.VisionTransformer(
        img_size=8,
        in_channels=1,
        dim=16,
        patch_size=4,
        num_heads=2,
        depths=[1, 1],
        num_classes=3,
        reg_tokens=0,
        pos_drop_rate=0.1,
        drop_path_rate=0.2,
        attn_drop=0.1,
        proj_drop=0.1,
        key=jax.random.key(0),
    )


def losses(vit, image, label, key):
    logits = jax.vmap(vit)(image, jax.random.split(key, len(image)))
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


class Placed(eqx.Module):
    """A layer that runs at a place."""

    layer: eqx.Module
    place: str

    def __call__(self, *args, **kwargs):
        with place_guard(self.place):
            return self.layer(*args, **kwargs)


def split_losses(vit, image, label, key):
    last = Placed(vit.blocks[1], "/node:worker:1")
    placed = eqx.tree_at(lambda net: net.blocks[1], vit, last)
    with place_guard("/node:worker:0"):
        return losses(placed, image, label, key)
