"""Nested tuples of arrays, as programs hold parameters and gradients.

JAX has such functions for any pytree; a node without jitted functions does without JAX.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def leaves(tree: Any) -> Iterator[Any]:
    """The arrays of a tree, in order.

    >>> list(leaves((1, (2, 3))))
    [1, 2, 3]
    """
    if isinstance(tree, tuple):
        for each in tree:
            yield from leaves(each)
    else:
        yield tree


def like_tree(tree: T, values: Iterable[Any]) -> T:
    """A tree of the same structure with these values in place of its own.

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
    """A NamedTuple of this class with these values; a field whose type is a namedtuple
    takes as many of them as that has fields."""
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
