"""Names the leaves of a pytree by their paths."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.tree_util import GetAttrKey

Path = tuple[Any, ...]
"""The keys of JAX that lead to a leaf."""


def leaves_with_paths(
    pytree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> list[tuple[tuple[str, ...], Any]]:
    """Return the leaves of a pytree, each with the names on its path.

    Raises ValueError for a `State` of Equinox that has been replaced by a newer one.
    """
    return [
        (names_on_path(path), leaf) for path, leaf in _leaves_with_keys(pytree, is_leaf)
    ]


def _leaves_with_keys(
    pytree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves of a pytree, each with its path, in the order of JAX.

    The path of a value in a `State` of Equinox has the names of its layer, instead of an
    index that a part of the state would not have.
    """
    equinox = sys.modules.get("equinox")

    def is_state(node: Any) -> bool:
        return equinox is not None and isinstance(node, equinox.nn.State)

    def stops(node: Any) -> bool:
        return is_state(node) or (is_leaf is not None and is_leaf(node))

    for path, node in jax.tree_util.tree_flatten_with_path(pytree, stops)[0]:
        if not is_state(node) or (is_leaf is not None and is_leaf(node)):
            yield path, node
            continue
        values, markers = node.tree_flatten()
        for number, (marker, value) in enumerate(zip(markers, values, strict=True)):
            for inner, leaf in _leaves_with_keys(value, is_leaf):
                yield (*path, *_keys_of(marker, number), *inner), leaf


def _keys_of(marker: Any, number: int) -> Path:
    """Return the path that Equinox writes into the marker of a value of a `State`."""
    # A marker such as `Net.layers[0].batch_counter` begins with the class of the model.
    words = re.findall(r"\w+", marker)[1:] if isinstance(marker, str) else ()
    return tuple(map(GetAttrKey, words or (str(number),)))


def names_on_path(path: Sequence[Any], *before: str) -> tuple[str, ...]:
    """Return the names on a JAX path, without the `value` of Flax variables."""
    keystr = jax.tree_util.keystr
    names = (*before, *(keystr((key,), simple=True) for key in path))
    return names[:-1] if len(names) > 1 and names[-1] == "value" else names
