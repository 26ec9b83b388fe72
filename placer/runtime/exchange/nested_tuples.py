"""Nested tuples of arrays: the form of parameters and gradients in programs.

JAX has such functions for any pytree, but a node without jitted functions does not load JAX.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def leaves(tree: Any) -> Iterator[Any]:
    """Iterate over the arrays of a tree, in order.

    >>> list(leaves((1, (2, 3))))
    [1, 2, 3]
    """
    if isinstance(tree, tuple):
        for each in tree:
            yield from leaves(each)
    else:
        yield tree


def like_tree(tree: T, values: Iterable[Any]) -> T:
    """Return a tree of the same structure with other values.

    >>> like_tree((1, (2, 3)), [4, 5, 6])
    (4, (5, 6))
    """
    return _like(tree, iter(values))  # type: ignore[no-any-return]


def _like(tree: Any, values: Iterator[Any]) -> Any:
    if not isinstance(tree, tuple):
        return next(values)
    items = [_like(each, values) for each in tree]
    return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)


def fill_tree(kind: type[T], values: Iterable[Any]) -> T:
    """Return an instance of a NamedTuple class, filled with values in order. A field
    that is a NamedTuple itself is filled with the next values."""
    return _fill(kind, iter(values))  # type: ignore[no-any-return]


def _fill(kind: Any, values: Iterator[Any]) -> Any:
    types = getattr(kind, "__annotations__", {})
    return kind(
        *(
            _fill(types[name], values)
            if hasattr(types.get(name), "_fields")
            else next(values)
            for name in kind._fields
        )
    )
