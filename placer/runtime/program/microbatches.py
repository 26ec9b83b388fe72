"""The microbatches of a step: their tasks, and values that are stored between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np

from placer.layouts.partition import RowRange, RowShard, part_range
from placer.runtime.program.tree import leaves, like_tree
from placer.tables.half_sums import add_in_float32, round_to
from placer.types import is_half_float


@dataclass(slots=True)
class Microbatches:
    """The microbatches of a step and the values that are stored between their tasks.

    Attributes:
        parts: the number of microbatches.
        turns: the tasks of a step in order: `forward.0` is the task `forward` of
            microbatch 0, and a task that runs once per step has no number. Empty
            without microbatches.
        number: the microbatch that runs now; None outside a microbatch.
    """

    parts: int = 1
    turns: Sequence[str] = ()
    number: int | None = None
    _stored: dict[tuple[int, str], Any] = field(default_factory=dict)
    """Values of one microbatch, by its number and the value's name."""
    _trees: dict[str, Any] = field(default_factory=dict)
    """The NamedTuples of values, without arrays."""
    _sums: dict[tuple[str, int], Any] = field(default_factory=dict)
    """Totals of arrays, by the name of their value and their index in it."""
    _donatable: set[tuple[str, int]] = field(default_factory=set)
    """The sums that only this object refers to, so that their memory may be donated."""
    _half_dtypes: dict[tuple[str, int], Any] = field(default_factory=dict)
    """The dtypes of half floats, whose sums are float32 until `totals`."""
    _row_parts: dict[tuple[str, int], list[Any]] = field(default_factory=dict)
    """Rows to concatenate, each with the number of its microbatch."""

    def run_tasks(self) -> Iterator[str]:
        """Yield the name of each task of a step, and set `number` to its microbatch."""
        for turn in self.turns:
            task, _, number = turn.partition(".")
            self.number = int(number) if number else None
            yield task
        self.number = None
        assert not self._stored, list(self._stored)

    def range(self, count: int) -> RowRange:
        """Return which rows of a batch of `count` rows belong to this microbatch; all
        rows outside a microbatch."""
        if self.number is None:
            return 0, count
        return part_range(count, self.number, self.parts)

    def keep(self, values: dict[str, Any]) -> None:
        """Store values of this microbatch."""
        assert self.number is not None
        self._stored.update(((self.number, name), v) for name, v in values.items())

    def load(self, names: Sequence[str], *, last: bool) -> tuple[Any, ...]:
        """Return stored values of this microbatch, and remove them if `last`."""
        assert self.number is not None
        keys = [(self.number, name) for name in names]
        get = self._stored.pop if last else self._stored.__getitem__
        return tuple(get(key) for key in keys)

    def sum(self, values: dict[str, Any]) -> None:
        """Add values of this microbatch to the sums over the microbatches."""
        for name, value in self._arrays(values):
            if name not in self._sums:
                self._sums[name] = value
                continue
            if is_half_float(value.dtype):
                self._half_dtypes[name] = value.dtype
            if isinstance(value, np.ndarray):
                add = add_in_float32
            else:
                # The first sum is the program's own array, which must not be donated.
                add = _add_donating() if name in self._donatable else _add()
                self._donatable.add(name)
            self._sums[name] = add(self._sums[name], value)

    def join(self, values: dict[str, Any]) -> None:
        """Store the rows of this microbatch, to be concatenated by `totals`."""
        for name, value in self._arrays(values):
            self._row_parts.setdefault(name, []).append((self.number, value))

    def keep_first(self, values: dict[str, Any]) -> None:
        """Store values that are the same in all microbatches: the first ones are
        kept."""
        for name, value in self._arrays(values):
            self._sums.setdefault(name, value)

    def totals(self, names: Sequence[str]) -> tuple[Any, ...]:
        """Return the sum, the concatenated rows or the common value of each name, and
        remove them. Rows are in the order of the microbatches."""
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
            return _concatenate([value for _, value in parts])
        total = self._sums.pop(key)
        half = self._half_dtypes.pop(key, None)
        return total if half is None else round_to(total, half)

    def _arrays(self, values: dict[str, Any]) -> Iterator[tuple[tuple[str, int], Any]]:
        """Yield the arrays of each value, with the value's name and their index in it,
        and remember the NamedTuples that they are in."""
        for name, tree in values.items():
            self._trees.setdefault(name, like_tree(tree, repeat(None)))
            for i, array in enumerate(leaves(tree)):
                yield (name, i), array

    def split(self, value: Any, count: int) -> Any:
        """Return the rows of this microbatch of a value of `count` rows."""
        low, high = self.range(count)
        return value[low:high]

    def first(self, value: Any) -> Any:
        """Return the value in the first microbatch, and zeros in the others."""
        return value if self.number == 0 else _zeros_like(value)


class MicrobatchCalls:
    """The calls of a node program that concern its microbatches.

    A step with microbatches is a loop over tasks, such as `forward` and `backward`.
    Each task runs once per microbatch; values that a later task needs are stored by
    name.

    Example:
        for task in node.microbatches():
            if task == "forward":
                x, label = node.read("x", "label")
                loss, s = forward(p, x, label)
                node.keep(s=s)
                node.sum(loss=loss)
            elif task == "backward":
                (s,) = node.taken("s")
                node.sum(g=backward(p, s))
        loss, g = node.totals("loss", "g")
        node.send(1, g)
        node.record(loss=loss)

    Attributes:
        micro: the microbatches of the step.
        count: the number of rows of the current global batch.
    """

    __slots__ = ()
    micro: Microbatches
    count: int

    @property
    def rows(self) -> int:
        """The number of rows of the global batch that belong to the current microbatch,
        on all nodes together; those of the whole batch outside a microbatch."""
        low, high = self.micro.range(self.count)
        return high - low

    def own_ranges(self, shard: RowShard) -> Sequence[RowRange]:
        """Return which rows of the current microbatch belong to this node.

        Args:
            shard: the node's part of a batch, from the plan.

        Returns:
            Ranges (start, stop) of rows of the global batch.
        """
        start, stop = self.micro.range(self.count)
        return [(start + low, start + high) for low, high in shard.ranges(stop - start)]

    def microbatches(self) -> Iterator[str]:
        """Run the tasks of a step in the order of the schedule.

        Returns:
            An iterator over names of tasks. During each one the other calls refer to
            its microbatch.

        Example:
            for task in node.microbatches():
        """
        return self.micro.run_tasks()

    def keep(self, **values: Any) -> None:
        """Store values of this microbatch for a later task.

        Args:
            values: arrays, or trees of them, by name.

        Example:
            node.keep(h1=h1, h1_res=h1_res)
        """
        self.micro.keep(values)

    def kept(self, *names: str) -> tuple[Any, ...]:
        """Return values that an earlier task of this microbatch stored by `keep`.

        Args:
            names: the names of the values.

        Returns:
            A tuple of the values, in the order of the names.

        Raises:
            KeyError: for a value that was not stored.

        Example:
            (h1,) = node.kept("h1")
        """
        return self.micro.load(names, last=False)

    def taken(self, *names: str) -> tuple[Any, ...]:
        """Return stored values like `kept`, and free them: for their last use.

        Args:
            names: the names of the values.

        Returns:
            A tuple of the values, in the order of the names.

        Raises:
            KeyError: for a value that was not stored.

        Example:
            (h1_res,) = node.taken("h1_res")
        """
        return self.micro.load(names, last=True)

    def sum(self, **values: Any) -> None:
        """Add values to their sums over the microbatches, which `totals` returns.

        Args:
            values: arrays by name, of the same shape and dtype in every microbatch.
                Half floats are added in float32, and the sum is rounded once.

        Example:
            node.sum(w_grad=w_grad)
        """
        self.micro.sum(values)

    def join(self, **values: Any) -> None:
        """Store rows of this microbatch; `totals` returns the rows of all,
        concatenated.

        Args:
            values: arrays by name, whose first dimension is the rows.

        Example:
            node.join(x_grad=x_grad)
        """
        self.micro.join(values)

    def one(self, **values: Any) -> None:
        """Store values that are the same in all microbatches; `totals` returns them.

        Args:
            values: arrays by name.

        Example:
            node.one(norm=norm)
        """
        self.micro.keep_first(values)

    def totals(self, *names: str) -> tuple[Any, ...]:
        """Return the results of all microbatches, and free them.

        Args:
            names: names that were passed to `sum`, `join` or `one`.

        Returns:
            A tuple in the order of the names: sums, concatenated rows in the order of
            the microbatches, and common values.

        Raises:
            KeyError: for a name that no microbatch has stored.

        Example:
            w_grad, x_grad = node.totals("w_grad", "x_grad")
        """
        return self.micro.totals(names)

    def split(self, value: Any) -> Any:
        """Return this microbatch's rows of a value that is computed once per step.

        Args:
            value: an array whose first dimension is the rows of the global batch.

        Returns:
            A view of its rows, or a JAX array.

        Example:
            mask = node.split(mask)
        """
        return self.micro.split(value, self.count)

    def first(self, value: Any) -> Any:
        """Return the value in the first microbatch, and zeros in the others, so that a
        sum over the microbatches counts it once.

        Args:
            value: an array.

        Returns:
            The array itself, or zeros of its shape and dtype.

        Example:
            decay = node.first(decay)
        """
        return self.micro.first(value)


@cache
def _add() -> Any:
    import jax

    return jax.jit(add_in_float32)


@cache
def _add_donating() -> Any:
    import jax

    return jax.jit(add_in_float32, donate_argnums=0)


def _concatenate(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import jax.numpy as jnp

    return jnp.concatenate(parts)


def _zeros_like(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    import jax.numpy as jnp

    return jnp.zeros_like(value)
