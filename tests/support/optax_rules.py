"""Optax optimizers for tests: the file `optimizers.py` of their specs.

placer has no rule of its own for any of them. A function with a parameter `learning_rate`
receives the rate of the step.
"""

import jax
import jax.numpy as jnp
import optax
from optax import contrib


def adafactor(learning_rate):
    return optax.adafactor(learning_rate)


def adabelief(learning_rate):
    return optax.adabelief(learning_rate)


def adan(learning_rate):
    return optax.adan(learning_rate, weight_decay=0.02)


def amsgrad(learning_rate):
    return optax.amsgrad(learning_rate)


def radam(learning_rate):
    return optax.radam(learning_rate, b2=0.9)


def yogi(learning_rate):
    return optax.yogi(learning_rate)


def novograd(learning_rate):
    return optax.novograd(learning_rate, weight_decay=0.01)


def sm3(learning_rate):
    return optax.sm3(learning_rate)


def muon(learning_rate):
    return contrib.muon(learning_rate)


def schedule_free(warmup_steps=2):
    return contrib.schedule_free_adamw(0.02, warmup_steps=warmup_steps)


def schedule_free_params(state, params):
    return contrib.schedule_free_eval_params(state, params)


def decayed_matrices(learning_rate, weight_decay=0.1):
    """A mask by `ndim`."""

    def matrices(params):
        return jax.tree.map(lambda p: jnp.ndim(p) > 1, params)

    return optax.adamw(learning_rate, weight_decay=weight_decay, mask=matrices)


def decayed_by_name(learning_rate):
    """A mask by name."""

    def weights(params):
        return {name: name.endswith(".w") for name in params}

    return optax.nadamw(learning_rate, weight_decay=0.1, mask=weights)


def by_label(learning_rate):
    """A rule for each label: some parameters are frozen."""
    rules = {
        "adam": optax.adam(learning_rate),
        "rprop": optax.rprop(0.001),
        "frozen": optax.set_to_zero(),
    }

    def labels(params):
        of = {"h.w": "adam", "p.w": "rprop", "o.b": "frozen"}
        return {name: of.get(name, "adam") for name in params}

    return optax.multi_transform(rules, labels)


def clipped(learning_rate):
    """The norm of all gradients, at the top of the chain."""
    return optax.chain(
        optax.clip_by_global_norm(0.05),
        optax.trace(0.9, nesterov=True),
        optax.scale_by_schedule(optax.linear_schedule(1.0, 0.2, 6)),
        optax.scale_by_learning_rate(learning_rate),
    )


def noisy(learning_rate):
    return optax.chain(
        optax.add_noise(0.01, 0.55, jax.random.key(3)), optax.sgd(learning_rate)
    )


def in_turns(learning_rate):
    """An update for every second step, by the mean of the gradients."""
    return optax.MultiSteps(optax.adam(learning_rate), 2)


def together(learning_rate):
    """The norm of all updates, after a rule."""
    return optax.chain(
        optax.scale_by_adam(),
        optax.clip_by_global_norm(1.0),
        optax.scale_by_learning_rate(learning_rate),
    )


def of_the_loss():
    return optax.lbfgs()


def adam(learning_rate):
    return optax.adam(learning_rate)


def warm_up_to(learning_rate):
    return optax.adam(optax.warmup_cosine_decay_schedule(0.0, learning_rate, 2, 5))


def adam_with_schedule():
    return optax.adam(optax.cosine_decay_schedule(0.1, 6))


def adam_at_one_rate():
    return optax.adam(0.1)


class Unhashable:
    __hash__ = None

    def __call__(self):
        return optax.sgd(0.1)


unhashable = Unhashable()
