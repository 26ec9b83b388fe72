"""Optax optimizers, with the parameters that they update by blocks, whole or together."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from placer.place.types import TensorType

SHAPES = {"w": (256, 130), "v": (40,), "m": (16, 16), "b": (8,)}
TYPES = {name: TensorType("float64", shape) for name, shape in SHAPES.items()}


def by_ndim(params):
    return jax.tree.map(lambda x: x.ndim > 1, params)


def by_name(params):
    return {name: name in "wm" for name in params}


def labels(params):
    return {name: "matrix" if name in "wm" else "rest" for name in params}


def of_labels(matrix, rest):
    return optax.multi_transform({"matrix": matrix, "rest": rest}, labels)


class Mean(NamedTuple):
    mean: Any


def with_mean(optimizer):
    """Keep a running mean of the parameters."""

    def update(updates, state, params):
        new = optax.apply_updates(params, updates)
        return updates, Mean(
            jax.tree.map(lambda m, p: 0.9 * m + 0.1 * p, state.mean, new)
        )

    mean = optax.GradientTransformation(Mean, update)
    return optax.chain(optimizer, mean)


def mean_of(state, params):
    return state[1].mean


OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(0.1),
    "adam-float32": lambda: optax.adam(0.1, mu_dtype=jnp.float32),
    "adamw-ndim": lambda: optax.adamw(0.1, mask=by_ndim),
    "adamw-name": lambda: optax.adamw(0.1, mask=by_name),
    "adabelief": lambda: optax.adabelief(0.1),
    "adan": lambda: optax.adan(0.1),
    "amsgrad": lambda: optax.amsgrad(0.1),
    "radam": lambda: optax.radam(0.1),
    "yogi": lambda: optax.yogi(0.1),
    "nadamw": lambda: optax.nadamw(0.1),
    "rprop": lambda: optax.rprop(0.1),
    "lion": lambda: optax.lion(0.1),
    "ademamix": lambda: contrib.ademamix(0.1),
    "adopt": lambda: contrib.adopt(0.1),
    "madgrad": lambda: contrib.madgrad(0.1),
    "sophia-like": lambda: optax.chain(optax.scale_by_sign(), optax.scale(-0.1)),
    "schedule_free_adamw": lambda: contrib.schedule_free_adamw(0.1, warmup_steps=3),
    "ema": lambda: optax.chain(optax.ema(0.9), optax.scale(-0.1)),
    "mean": lambda: with_mean(optax.adam(0.1)),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.1), 2),
    "freeze": lambda: optax.chain(optax.adam(0.1), optax.freeze(by_ndim)),
    "masked": lambda: optax.masked(optax.sgd(0.1, momentum=0.9), by_name),
    "multi_transform": lambda: of_labels(optax.adam(0.1), optax.sgd(0.1)),
    "partition-zero": lambda: of_labels(optax.set_to_zero(), optax.lion(0.1)),
    "schedule": lambda: optax.adam(optax.warmup_cosine_decay_schedule(0, 0.1, 2, 4)),
    "inject": lambda: optax.inject_hyperparams(optax.adam)(
        optax.exponential_decay(0.1, 2, 0.5)
    ),
    "clip": lambda: optax.chain(optax.clip(0.5), optax.sgd(0.1)),
    "nonnegative": lambda: optax.chain(optax.sgd(0.1), optax.keep_params_nonnegative()),
    "adafactor": lambda: optax.adafactor(0.1, min_dim_size_to_factor=16),
    "factored": lambda: optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=16), optax.scale(-0.1)
    ),
    "sm3": lambda: optax.sm3(0.1),
    "novograd": lambda: optax.novograd(0.1),
    "muon": lambda: contrib.muon(0.1),
    "lamb": lambda: optax.lamb(0.1),
    "lars": lambda: optax.lars(0.1),
    "fromage": lambda: optax.fromage(0.1),
    "add_noise": lambda: optax.chain(
        optax.add_noise(0.1, 0.55, jax.random.key(3)), optax.sgd(0.1)
    ),
    "noisy_sgd": lambda: optax.noisy_sgd(0.1, key=7),
    "adaptive_grad_clip": lambda: optax.chain(
        optax.adaptive_grad_clip(0.1), optax.sgd(0.1)
    ),
    "centralize": lambda: optax.chain(optax.centralize(), optax.sgd(0.1)),
    "normalize": lambda: optax.chain(contrib.normalize(), optax.sgd(0.1)),
    "block_rms": lambda: optax.chain(optax.clip_by_block_rms(0.1), optax.sgd(0.1)),
    "zero_nans": lambda: optax.chain(optax.zero_nans(), optax.adam(0.1)),
    "prodigy": lambda: contrib.prodigy(0.1),
    "dog": lambda: contrib.dog(),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(0.1), 3),
    "clip_by_global_norm": lambda: optax.chain(
        optax.clip_by_global_norm(0.5), optax.adam(0.1)
    ),
    "clipped-late": lambda: optax.chain(
        optax.scale_by_adam(), optax.clip_by_global_norm(0.5), optax.scale(-0.1)
    ),
    "clipped-part": lambda: of_labels(
        optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.1)), optax.sgd(0.1)
    ),
    "clipped-twice": lambda: optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.add_decayed_weights(0.1),
        optax.clip_by_global_norm(0.1),
        optax.sgd(0.1),
    ),
    "scaled-by-all": lambda: optax.chain(
        optax.scale_by_trust_ratio(),
        optax.normalize_by_update_norm(),
        optax.scale(-0.1),
    ),
}
