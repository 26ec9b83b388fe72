"""How plain JAX programs call models of Equinox and Keras, for `published.train_plain`."""

from __future__ import annotations

import inspect
from typing import Any

import equinox as eqx
import jax
from published import Published


def of_equinox(model: Published, models: dict[str, Any]) -> Any:
    """Split a module into its arrays of floats and everything else."""
    losses, name = model.net.losses, model.state
    takes_key = "key" in inspect.signature(losses).parameters
    (argument, module), *_ = models.items()
    params, rest = eqx.partition(module, eqx.is_inexact_array)

    def forward(params: Any, state: Any, key: Any, training: bool, *batch: Any) -> Any:
        net = eqx.nn.inference_mode(eqx.combine(params, rest), value=not training)
        own = [net, *([] if name is None else [state]), *batch]
        result = losses(*own, **({"key": key} if takes_key else {}))
        return (result, state) if name is None else result

    def join(params: Any, state: Any) -> dict[str, Any]:
        trained = {argument: eqx.combine(params, rest)}
        return trained | ({} if name is None else {name: state})

    return params, models.get(name) if name else None, forward, join


def of_keras(model: Published, models: dict[str, Any]) -> Any:
    """Split the variables of a Keras model into trained and other ones.

    Seed generators, in their order, have the keys of streams of random numbers.
    """
    trained, other = models.values()
    losses = model.net.losses
    streams = [at for at, x in enumerate(other) if x.path.endswith("generator_state")]

    def forward(params: Any, state: Any, key: Any, training: bool, *batch: Any) -> Any:
        state = [*state]
        for number, at in enumerate(streams):
            state[at] = jax.random.key_data(jax.random.fold_in(key, number))
        return losses(params, state, *batch, training=training)

    def join(params: Any, state: Any) -> dict[str, Any]:
        kept = [other[at] if at in streams else x for at, x in enumerate(state)]
        return dict(zip(models, (params, kept), strict=True))

    return [x.value for x in trained], [x.value for x in other], forward, join
