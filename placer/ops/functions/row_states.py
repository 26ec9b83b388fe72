"""Tracks the axis of the batch rows in each value of a traced function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


class NotProvenError(Exception):
    """No proof was found that each row of a value depends only on its row of the batch."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A value with `per_row` adjacent rows along `axis` for each row of the batch."""

    axis: int
    per_row: int = 1

    def with_axis(self, axis: int) -> Rows:
        """Return the same state for rows along another axis."""
        return Rows(axis, self.per_row)


State = Rows | None
"""None: the value does not depend on the batch."""
BATCH = Rows(0)


def require(fact: bool) -> None:
    """Raise NotProvenError unless `fact` is true."""
    if not fact:
        raise NotProvenError


def is_same(one: Any, other: Any) -> bool:
    """Return True if two constants or two parameters of equations are the same."""
    if one is other:
        return True
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if hasattr(one, "shape") and hasattr(other, "shape"):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if jax.numpy.issubdtype(one.dtype, jax.dtypes.extended):
            return False
        return np.asarray(one).tobytes() == np.asarray(other).tobytes()
    if isinstance(one, float) and isinstance(other, float) and one != one:
        return other != other
    return type(one) is type(other) and bool(one == other)


def state_of_sizes(
    small: Sequence[int], large: Sequence[int], batches: tuple[int, int]
) -> State:
    """Return the state of a value with these shapes for two batches.

    Exactly one axis may differ, with sizes that are multiples of the batch sizes. The
    state is None if the shapes are equal. Raises NotProvenError otherwise.
    """
    require(len(small) == len(large))
    changing = [
        i for i, pair in enumerate(zip(small, large, strict=True)) if len({*pair}) > 1
    ]
    if not changing:
        return None
    require(len(changing) == 1)
    each, rest = divmod(small[changing[0]], batches[0])
    require(rest == 0 and each > 0 and large[changing[0]] == each * batches[1])
    return Rows(changing[0], each)


@dataclass(frozen=True, slots=True)
class ProofContext:
    """The two batch sizes of a proof, and whether it is inside a custom derivative."""

    batches: tuple[int, int]
    in_custom_rule: bool = False


@dataclass(frozen=True, slots=True)
class EquationPair:
    """An equation as traced for each of two batches, and the states of its operands."""

    small: Any
    large: Any
    states: list[State]
    proof: ProofContext

    @property
    def name(self) -> str:
        return str(self.small.primitive.name)

    @property
    def only_state(self) -> Rows:
        """The state of the first operand, if no other operand depends on the batch."""
        first, *others = self.states
        require(first is not None and not any(others))
        assert first is not None
        return first

    def require_same_params(self, but: Sequence[str] = ()) -> None:
        """Require that both equations have the same parameters, except `but`."""
        one, other = self.small.params, self.large.params
        require(one.keys() == other.keys())
        require(all(is_same(one[key], other[key]) for key in one if key not in but))

    def shape(self, operand: int = 0) -> Sequence[int]:
        """Return the shape of an operand for the smaller batch."""
        shape: Sequence[int] = self.small.invars[operand].aval.shape
        return shape

    def state_of_param(self, key: str) -> State:
        """Return the state of a value whose shape is the parameter `key`."""
        small, large = self.small.params[key], self.large.params[key]
        return state_of_sizes(small, large, self.proof.batches)

    def states_of_results(self) -> list[State]:
        """Return the states of the results, from their shapes."""
        small, large = self.small.outvars, self.large.outvars
        require(len(small) == len(large))
        return [
            state_of_sizes(a.aval.shape, b.aval.shape, self.proof.batches)
            for a, b in zip(small, large, strict=True)
        ]
