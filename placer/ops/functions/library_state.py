"""Finds state of libraries in the arguments of a traced function.

State is any float array that training must not update like a parameter.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from placer.ops.functions.library_leaves import is_untrained
from placer.ops.functions.paths import names_on_path

Path = tuple[str, ...]

_NAMES = {
    "batch_stats": "has running statistics of Flax",
    "non_trainable_variables": "has non-trainable variables of Keras",
    "opt_state": "has the state of an optimizer",
}
"""Names that libraries use for state, and only for state."""
_COLLECTION = "is a collection of Flax other than 'params'"
COLLECTIONS = {_NAMES["batch_stats"], _COLLECTION}
"""Descriptions of collections of Flax linen, which are never trained."""
_AVERAGE = {"average", "counter", "hidden"}
"""The keys of a moving average of Haiku."""


def find_state(node: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path of each part of a pytree that is state, and a description.

    Args:
        node: the pytree of an argument.
        path: the names that lead to it.
    """
    said = _NAMES.get(path[-1]) or _said_of(node)
    if said is not None:
        yield path, said
        return
    collections = _collections(node)
    for inner, child in _children(node):
        child_path = (*path, *inner)
        if inner[-1:] and inner[-1] in collections:
            yield child_path, _COLLECTION
        else:
            yield from find_state(child, child_path)


def _said_of(node: Any) -> str | None:
    module = type(node).__module__
    if isinstance(node, tuple) and module.partition(".")[0] == "optax":
        return "is the state of an optax optimizer"
    if isinstance(node, Mapping) and set(node) == _AVERAGE:
        return "is a moving average of Haiku"
    if is_untrained(node):
        return f"is {type(node).__name__}, which its library does not train"
    if hasattr(node, "shape") and getattr(node, "trainable", True) is False:
        return "is a variable with trainable=False"
    return None


def _collections(node: Any) -> frozenset[str]:
    """Return the collections besides parameters in a dict of Flax linen variables."""
    if "flax" not in sys.modules or not isinstance(node, Mapping):
        return frozenset()
    if not isinstance(node.get("params"), Mapping):
        return frozenset()
    others = (key for key, value in node.items() if isinstance(value, Mapping))
    return frozenset(key for key in others if key != "params")


def _children(node: Any) -> Iterator[tuple[Path, Any]]:
    if isinstance(node, Mapping):
        yield from (((str(key),), value) for key, value in node.items())
        return
    for path, child in jax.tree.leaves_with_path(
        node, is_leaf=lambda each: each is not node
    ):
        if child is not node:
            yield names_on_path(path), child
