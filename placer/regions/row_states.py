"""What is known of the rows of a batch in the values of a traced function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


class NotProvenError(Exception):
    """It is not proven that a value has a row for each row of the batch."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A value with `each` rows for each row of the batch, side by side along `axis`."""

    axis: int
    each: int = 1

    def moved(self, axis: int) -> Rows:
        return Rows(axis, self.each)


State = Rows | None
"""None: the value does not depend on the batch."""
BATCH = Rows(0)


def need(fact: bool) -> None:
    if not fact:
        raise NotProvenError


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same: constants, or parameters of an equation."""
    if one is other:
        return True
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "shape") and hasattr(other, "shape"):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if jax.numpy.issubdtype(one.dtype, jax.dtypes.extended):
            return False
        return np.asarray(one).tobytes() == np.asarray(other).tobytes()
    if isinstance(one, float) and isinstance(other, float) and one != one:
        return other != other
    return type(one) is type(other) and bool(one == other)


def rows_of_sizes(
    small: Sequence[int], large: Sequence[int], batches: tuple[int, int]
) -> State:
    """The one axis whose sizes are those of the two batches, or a multiple."""
    need(len(small) == len(large))
    found = [
        i for i, pair in enumerate(zip(small, large, strict=True)) if len({*pair}) > 1
    ]
    if not found:
        return None
    need(len(found) == 1)
    each, rest = divmod(small[found[0]], batches[0])
    need(rest == 0 and each > 0 and large[found[0]] == each * batches[1])
    return Rows(found[0], each)


@dataclass(frozen=True, slots=True)
class Equations:
    """An equation as it is for each of two batches, and what is known of its operands."""

    small: Any
    large: Any
    states: list[State]
    batches: tuple[int, int]

    @property
    def name(self) -> str:
        return str(self.small.primitive.name)

    @property
    def only(self) -> Rows:
        """The state of its first operand, where the others are not of the batch."""
        first, *others = self.states
        need(first is not None and not any(others))
        assert first is not None
        return first

    def need_same(self, but: Sequence[str] = ()) -> None:
        """Need the parameters of both to be the same."""
        one, other = self.small.params, self.large.params
        need(one.keys() == other.keys())
        need(all(same(one[key], other[key]) for key in one if key not in but))

    def shape(self, operand: int = 0) -> Sequence[int]:
        """That of an operand, for the smaller batch."""
        found: Sequence[int] = self.small.invars[operand].aval.shape
        return found

    def shapes_out(self, result: int = 0) -> tuple[Sequence[int], Sequence[int]]:
        small, large = self.small.outvars[result], self.large.outvars[result]
        return small.aval.shape, large.aval.shape

    def sizes(self, key: str) -> State:
        """What the sizes in a parameter say."""
        small, large = self.small.params[key], self.large.params[key]
        return rows_of_sizes(small, large, self.batches)

    def made(self, result: int = 0) -> State:
        """What the sizes of a result say."""
        return rows_of_sizes(*self.shapes_out(result), self.batches)

    def all(self, state: State) -> list[State]:
        """Each result is so."""
        return [state] * len(self.small.outvars)
