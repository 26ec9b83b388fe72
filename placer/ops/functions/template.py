"""A pytree with types in place of its values, and streams of random numbers in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from placer.place.types import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A flattened pytree, with a type in place of each value to fill in.

    Attributes:
        leaves: a type to fill in, another template, or a leaf of the pytree itself.
        keys: if given, the pytree is a dict with these keys in this order, because JAX
            would sort them. `structure` then belongs to the list of its values.
    """

    structure: Any
    leaves: Sequence[Any]
    keys: tuple[str, ...] | None = None

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of the values to fill in, in order."""
        inner = (
            leaf.types if isinstance(leaf, Template) else (leaf,)
            for leaf in self.leaves
        )
        return tuple(x for each in inner for x in each if isinstance(x, TensorType))

    def pytrees(self) -> Iterator[Any]:
        """Yield the pytrees of templates inside, with types in place of values."""
        for leaf in self.leaves:
            if isinstance(leaf, Template):
                yield jax.tree.unflatten(leaf.structure, leaf.leaves)

    def fill(self, values: Iterator[Any], key: Any = None) -> Any:
        """Return the pytree with the next values in place of their types.

        `key` is the key of the step, for streams of random numbers. Without it, they stay
        as they are.
        """
        leaves = [_fill(leaf, values, key) for leaf in self.leaves]
        pytree = jax.tree.unflatten(self.structure, leaves)
        return (
            pytree if self.keys is None else dict(zip(self.keys, pytree, strict=True))
        )


@dataclass(frozen=True, slots=True)
class StreamLeaf:
    """The key of stream `number`, or its count if `number` is None.

    `is_data` is true for a seed generator of Keras, which has the words of the key.
    """

    number: int | None
    shape: tuple[int, ...]
    is_data: bool = False

    def value(self, key: Any) -> Any:
        """Return the leaf for a key of the step."""
        if self.number is None:
            return jax.numpy.zeros(self.shape, jax.numpy.uint32)
        own = jax.random.fold_in(key, self.number)
        if self.is_data:
            return jax.random.key_data(own)
        return jax.random.split(own, self.shape) if self.shape else own


def _fill(leaf: Any, values: Iterator[Any], key: Any) -> Any:
    if isinstance(leaf, Template):
        return leaf.fill(values, key)
    if isinstance(leaf, StreamLeaf):
        return leaf if key is None else leaf.value(key)
    return next(values) if isinstance(leaf, TensorType) else leaf
