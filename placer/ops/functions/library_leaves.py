"""The leaves of Flax, Equinox and Keras models: parameters, state, seeds and streams."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from placer.ops.functions.paths import leaves_with_paths
from placer.ops.functions.template import StreamLeaf
from placer.place.types import FLOATS, ITEM_BYTES


def parameter_mask(pytree: Any) -> Iterator[bool]:
    """Yield for each leaf whether it is a parameter.

    Parameters are float arrays, except in Flax variables other than `nnx.Param`, and in
    `State` and `StateIndex` of Equinox.
    """
    for leaf in jax.tree.leaves(pytree, is_leaf=is_untrained):
        if is_untrained(leaf):
            yield from (False for _ in jax.tree.leaves(leaf))
        else:
            yield is_array(leaf) and str(leaf.dtype) in FLOATS


def is_untrained(node: Any) -> bool:
    """Return True if the library of a node of the pytree does not train it."""
    # Libraries that are not imported have no objects in the pytree.
    flax, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    if flax is not None and isinstance(node, flax.Variable):
        return not isinstance(node, flax.Param)
    if equinox is None:
        return False
    return isinstance(node, equinox.nn.State | equinox.nn.StateIndex)


def complex_leaves(pytree: Any) -> Iterator[tuple[str, ...]]:
    """Yield the path of each complex array that a library would train."""
    for path, leaf in leaves_with_paths(pytree, is_untrained):
        if not is_untrained(leaf) and is_array(leaf) and "complex" in str(leaf.dtype):
            yield path


def could_be_state(pytree: Any) -> Iterator[bool]:
    """Yield for each leaf whether it becomes state if a function assigns it.

    These are the arrays of Flax nnx variables other than parameters and streams of random
    numbers.
    """
    nnx = sys.modules.get("flax.nnx")

    def is_variable(node: Any) -> bool:
        return nnx is not None and isinstance(node, nnx.Variable)

    for node in jax.tree.leaves(pytree, is_leaf=is_variable):
        kept = is_variable(node) and is_untrained(node)
        kept = kept and nnx is not None and not isinstance(node, nnx.RngState)
        for leaf in jax.tree.leaves(node) if is_variable(node) else [node]:
            yield kept and is_number_array(leaf)


def is_number_array(leaf: Any) -> bool:
    """Return True for an array of floats, integers or booleans, which can be state."""
    is_number = is_array(leaf) and str(leaf.dtype) in ITEM_BYTES.keys() - {"key"}
    return is_number and not is_seed(leaf)


def stream_leaves(pytree: Any) -> Iterator[tuple[int, StreamLeaf]]:
    """Yield the leaves of streams of random numbers, each with its index."""
    nnx = sys.modules.get("flax.nnx")
    at = number = 0

    def is_stream(node: Any) -> bool:
        return nnx is not None and isinstance(node, nnx.RngStream)

    for node in jax.tree.leaves(pytree, is_leaf=is_stream):
        if is_seed(node):
            yield at, StreamLeaf(number, tuple(node.shape), is_data=True)
        leaves = jax.tree.leaves(node) if is_stream(node) else [node]
        for leaf in leaves if is_stream(node) else ():
            is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            yield at, StreamLeaf(number if is_key else None, tuple(leaf.shape))
            at += 1
        number += is_stream(node) or is_seed(node)
        at += not is_stream(node)


def path_of_variable(leaf: Any) -> tuple[str, ...]:
    """Return the names on the path that Keras gives a variable; empty for other leaves."""
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(leaf, keras.Variable):
        return ()
    return tuple(leaf.path.split("/"))


def backend_of_variable(leaf: Any) -> str | None:
    """Return the backend of a variable of Keras, such as "jax"; None for other leaves."""
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(leaf, keras.Variable):
        return None
    return str(keras.config.backend())


def is_seed(leaf: Any) -> bool:
    """Return True for the variable of a seed generator of Keras."""
    names = path_of_variable(leaf)
    return names[-1:] == ("seed_generator_state",) and not leaf.trainable


def has_arrays(pytree: Any) -> bool:
    """Return True if a pytree has arrays; numbers of NumPy are not arrays."""
    leaves = jax.tree.leaves(open_models(pytree))
    return any(is_array(x) and not isinstance(x, np.generic) for x in leaves)


def open_models(pytree: Any) -> Any:
    """Return a pytree with the variables of each Keras model in its place."""
    keras = sys.modules.get("keras")
    if keras is None:
        return pytree
    return jax.tree.map(
        lambda leaf: list(leaf.variables) if isinstance(leaf, keras.Model) else leaf,
        pytree,
    )


def is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")
