"""The optimizer of digits_optax.yaml."""

import optax
from optax import contrib


def schedule_free() -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        contrib.schedule_free_adamw(0.003, weight_decay=1e-4),
    )


def averaged(state: optax.OptState, params: optax.Params) -> optax.Params:
    """Return the averaged parameters, given the state of the whole chain."""
    return contrib.schedule_free_eval_params(state[1], params)
