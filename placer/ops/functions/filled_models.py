"""Puts new values into the parameters of models."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from placer.ops.functions.library_leaves import is_untrained, parameter_mask


def fill(model: Any, values: Iterator[Any], state: Set[int] = frozenset()) -> Any:
    """Return a pytree with the next values as its parameters and state, in its order.

    `state` has the `id` of each array that is state, and no parameter.
    Modules of Flax nnx, Keras models and variables of Keras are updated in place. Other
    nodes of the pytree are new. Values are converted to the dtypes of the parameters.
    """
    leaves, structure = jax.tree.flatten(
        model, is_leaf=lambda node: _is_module(node) or is_untrained(node)
    )
    filled = [_filled(leaf, values, state) for leaf in leaves]
    return jax.tree.unflatten(structure, filled)


def _filled(leaf: Any, values: Iterator[Any], state: Set[int]) -> Any:
    if _is_module(leaf):
        nnx = sys.modules["flax.nnx"]
        parts, structure = jax.tree.flatten(leaf, is_leaf=is_untrained)
        filled = [_filled(each, values, state) for each in parts]
        new = jax.tree.unflatten(structure, filled)
        nnx.update(leaf, nnx.state(new))
        return leaf
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(leaf, keras.Model | keras.Variable):
        is_model = isinstance(leaf, keras.Model)
        for variable in leaf.variables if is_model else [leaf]:
            if variable.trainable or id(variable) in state:
                variable.assign(next(values))
        return leaf
    if is_untrained(leaf):
        arrays, structure = jax.tree.flatten(leaf)
        if state.isdisjoint(map(id, arrays)):
            return leaf
        new = [_converted(next(values), x) if id(x) in state else x for x in arrays]
        return jax.tree.unflatten(structure, new)
    is_parameter = next(parameter_mask(leaf)) or id(leaf) in state
    return _converted(next(values), leaf) if is_parameter else leaf


def _is_module(node: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(node, nnx.Module)


def _converted(value: Any, leaf: Any) -> Any:
    array = np.asarray(value).astype(leaf.dtype)
    if isinstance(leaf, np.ndarray):
        return array
    with jax.enable_x64(True):  # otherwise float64 becomes float32
        return jnp.asarray(array)
