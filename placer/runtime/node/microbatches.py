"""The calls of a node program that run microbatches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np

from placer.place.types import is_half_float
from placer.runtime.exchange.nested_tuples import leaves, like_tree
from placer.runtime.node.position import Position
from placer.tables.half_sums import add_in_float32, round_to
from placer.tables.key_sums import KeySums


@dataclass(slots=True)
class Microbatches:
    """The calls of a node program that run the microbatches of a step.

    A step with microbatches is a loop over tasks, such as `forward` and `backward`.
    Each task runs once per microbatch. Values for a later task are stored by name. A
    value is an array or a NamedTuple of arrays.

    Example:
        for task in node.microbatches():
            if task == "forward":
                x, label = node.read("x", "label")
                loss, s = forward(p, x, label)
                node.keep_values(s=s)
                node.sum_microbatches(loss=loss)
            elif task == "backward":
                (s,) = node.pop_values("s")
                node.sum_microbatches(g=backward(p, s))
        loss, g = node.microbatch_totals("loss", "g")
        node.send(GRADIENTS_TO_PS0, g)
        node.record(loss=loss)

    Attributes:
        position: the current step and microbatch of the node; `microbatches` advances it.
        turns: the tasks of a step in order, empty without microbatches. `forward.0` is
            the task `forward` of microbatch 0. A task that runs once per step has no
            number.
    """

    position: Position = field(default_factory=Position)
    turns: Sequence[str] = ()
    _stored: dict[tuple[int, str], Any] = field(default_factory=dict, init=False)
    """Values of one microbatch, by microbatch number and value name."""
    _trees: dict[str, Any] = field(default_factory=dict, init=False)
    """The NamedTuple structure of each value, without arrays."""
    _sums: dict[tuple[str, int], Any] = field(default_factory=dict, init=False)
    """Running sums, by value name and index of the array in the value."""
    _donatable: set[tuple[str, int]] = field(default_factory=set, init=False)
    """The sums that no program refers to, so that their memory may be donated."""
    _half_dtypes: dict[tuple[str, int], Any] = field(default_factory=dict, init=False)
    """The dtypes of half floats; their sums stay float32 until `microbatch_totals`."""
    _row_parts: dict[tuple[str, int], list[Any]] = field(
        default_factory=dict, init=False
    )
    """Rows to concatenate, each with its microbatch number."""

    def microbatches(self) -> Iterator[str]:
        """Iterate over the tasks of a step in the order of the schedule.

        Returns:
            An iterator over names of tasks. Other calls of the node refer to the
            microbatch of the current task.

        Example:
            for task in node.microbatches():
        """
        for turn in self.turns:
            task, _, number = turn.partition(".")
            self.position.microbatch = int(number) if number else None
            yield task
        self.position.microbatch = None
        assert not self._stored, list(self._stored)

    def keep_values(self, /, **values: Any) -> None:
        """Store values of this microbatch for a later task.

        Args:
            values: values of any shape and dtype, by name.

        Example:
            node.keep_values(h1=h1, h1_res=h1_res)
        """
        assert self.position.microbatch is not None
        self._stored.update(
            ((self.position.microbatch, name), v) for name, v in values.items()
        )

    def load_values(self, *names: str) -> tuple[Any, ...]:
        """Return values that an earlier task of this microbatch stored with `keep_values`.

        Args:
            names: the names of the values.

        Returns:
            A tuple of the values, in the order of the names.

        Raises:
            KeyError: for a value that was not stored.

        Example:
            (h1,) = node.load_values("h1")
        """
        return tuple(self._stored[key] for key in self._keys(names))

    def pop_values(self, *names: str) -> tuple[Any, ...]:
        """Return stored values like `load_values`, and free them.

        Args:
            names: the names of the values.

        Returns:
            A tuple of the values, in the order of the names.

        Raises:
            KeyError: for a value that was not stored.

        Example:
            (h1_res,) = node.pop_values("h1_res")
        """
        return tuple(self._stored.pop(key) for key in self._keys(names))

    def _keys(self, names: Sequence[str]) -> list[tuple[int, str]]:
        assert self.position.microbatch is not None
        return [(self.position.microbatch, name) for name in names]

    def sum_microbatches(self, /, **values: Any) -> None:
        """Add values to their sums over the microbatches.

        Args:
            values: values by name, of the same shapes and dtypes in every microbatch.
                Half floats are added in float32, and the sum is rounded once.

        Example:
            node.sum_microbatches(w_grad=w_grad)
        """
        # Add all JAX arrays of the same devices in one call: a call takes longer than most sums.
        together: dict[frozenset[Any], dict[tuple[str, int], Any]] = {}
        for name, value in self._arrays(values):
            if name not in self._sums:
                self._sums[name] = value
                continue
            if isinstance(value, KeySums):
                self._sums[name] += value
                continue
            if is_half_float(value.dtype):
                self._half_dtypes[name] = value.dtype
            if isinstance(value, np.ndarray | np.generic):
                self._sums[name] = add_in_float32(self._sums[name], value)
            else:
                together.setdefault(frozenset(value.devices()), {})[name] = value
        for terms in together.values():
            self._add_together(terms)

    def _add_together(self, terms: dict[tuple[str, int], Any]) -> None:
        """Add JAX arrays to their sums, in one call."""
        # The first sum is the program's own array, which must not be donated.
        first = terms.keys() - self._donatable
        ours = {name: self._sums[name] for name in terms if name not in first}
        others = {name: self._sums[name] for name in terms if name in first}
        names = (*ours, *others)
        sums = _jitted_sums()(
            [*ours.values()], [*others.values()], [terms[name] for name in names]
        )
        self._sums.update(zip(names, sums, strict=True))
        self._donatable |= first

    @property
    def sums(self) -> Sequence[Any]:
        """The sums so far; JAX may still be computing them."""
        return list(self._sums.values())

    def join_microbatches(self, /, **values: Any) -> None:
        """Store rows of this microbatch, to be concatenated with the rows of other microbatches.

        Args:
            values: values by name; the first dimension of each array is the rows.

        Example:
            node.join_microbatches(x_grad=x_grad)
        """
        for name, value in self._arrays(values):
            self._row_parts.setdefault(name, []).append(
                (self.position.microbatch, value)
            )

    def one_microbatch(self, /, **values: Any) -> None:
        """Store values that are equal in all microbatches; the first microbatch's are kept.

        Args:
            values: values by name, of any shape and dtype.

        Example:
            node.one_microbatch(norm=norm)
        """
        for name, value in self._arrays(values):
            self._sums.setdefault(name, value)

    def microbatch_totals(self, *names: str) -> tuple[Any, ...]:
        """Return the results of all microbatches, and free them.

        Args:
            names: names that were passed to `sum_microbatches`, `join_microbatches` or
                `one_microbatch`.

        Returns:
            A tuple in the order of the names: sums, rows concatenated in the order of the
            microbatches, or common values.

        Raises:
            KeyError: for a name that no microbatch has stored.

        Example:
            w_grad, x_grad = node.microbatch_totals("w_grad", "x_grad")
        """
        trees = {name: self._trees.pop(name) for name in names}
        return tuple(
            like_tree(
                tree, [self._total((name, i)) for i, _ in enumerate(leaves(tree))]
            )
            for name, tree in trees.items()
        )

    def _total(self, key: tuple[str, int]) -> Any:
        self._donatable.discard(key)
        if key not in self._sums:
            parts = sorted(self._row_parts.pop(key), key=lambda part: part[0])
            return _numpy_of(parts[0][1]).concatenate([value for _, value in parts])
        total = self._sums.pop(key)
        half = self._half_dtypes.pop(key, None)
        return total if half is None else round_to(total, half)

    def _arrays(self, values: dict[str, Any]) -> Iterator[tuple[tuple[str, int], Any]]:
        """Yield the arrays of each value with their keys, and remember each value's structure."""
        for name, tree in values.items():
            self._trees.setdefault(name, like_tree(tree, repeat(None)))
            for i, array in enumerate(leaves(tree)):
                yield (name, i), array

    def split_microbatches(self, value: Any) -> Any:
        """Return this microbatch's rows of a value that is computed once per step.

        Args:
            value: an array whose first dimension is the rows of the global batch.

        Returns:
            A view of its rows, or a JAX array.

        Example:
            mask = node.split_microbatches(mask)
        """
        low, high = self.position.row_range
        return value[low:high]

    def first_microbatch(self, value: Any) -> Any:
        """Return the value in the first microbatch, and zeros in all others.

        A sum over the microbatches then counts the value once.

        Args:
            value: an array of any shape and dtype.

        Returns:
            The array itself, or zeros of its shape and dtype.

        Example:
            decay = node.first_microbatch(decay)
        """
        return (
            value
            if self.position.microbatch == 0
            else _numpy_of(value).zeros_like(value)
        )


@cache
def _jitted_sums() -> Any:
    """Return a jitted function that adds terms to totals; the memory of `donated` is reused."""
    import jax

    def add(donated: list[Any], kept: list[Any], terms: list[Any]) -> list[Any]:
        totals = [*donated, *kept]
        return [add_in_float32(*pair) for pair in zip(totals, terms, strict=True)]

    return jax.jit(add, donate_argnums=0)


def _numpy_of(array: Any) -> Any:
    """Return `numpy` for numpy arrays, and `jax.numpy` for JAX arrays."""
    if isinstance(array, np.ndarray):
        return np
    import jax.numpy as jnp

    return jnp
