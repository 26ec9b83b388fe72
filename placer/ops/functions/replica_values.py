"""The values of a function of one part of a batch: those with rows, and the equal ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend import core

from placer.errors import PlacerError
from placer.ops.functions.flatten import FlatJaxpr

Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PartValues:
    """What is known about the values of a function of one part of a batch.

    Attributes:
        parts: the number of parts.
        rows: the number of rows of a part.
        axes: by variable of a part, the axes whose size depends on the batch.
        equal: the variables that are equal in all parts, except values with the rows of
            a part.
    """

    parts: int
    rows: int
    axes: dict[Any, Axes]
    equal: set[Any]

    def axes_of(self, atom: Any) -> Axes:
        """Return the axes of a variable or literal whose size depends on the batch."""
        return () if isinstance(atom, core.Literal) else self.axes.get(atom, ())

    def has_rows(self, atom: Any) -> bool:
        """Return True if the first axis of a value, and only this one, has the rows."""
        axes = self.axes_of(atom)
        return axes == (0,) and bool(atom.aval.shape[0] == self.rows)

    def is_equal(self, atom: Any) -> bool:
        """Return True if a variable or literal is known to be equal in all parts."""
        return isinstance(atom, core.Literal) or atom in self.equal

    def mark_equal(self, operands: Sequence[Any], results: Sequence[Any]) -> None:
        """Mark the results of an equation as equal in all parts if its operands are.

        A value with the rows of a part counts as rows of the batch. So it can leave its
        region, although types of the graph have no number of rows of a part.
        """
        if not all(map(self.is_equal, operands)):
            return
        for var in results:
            sizes = [var.aval.shape[axis] for axis in self.axes_of(var)]
            if self.parts == 1 or self.rows not in sizes:
                self.equal.add(var)


def values_of(
    flat: FlatJaxpr, twin: FlatJaxpr, has_rows: Sequence[bool], parts: int
) -> PartValues:
    """Find the axes with rows, whose sizes differ between two traces of a function.

    Args:
        flat: the equations.
        twin: the same function, traced for another number of rows.
        has_rows: whether each input has rows of the batch.

    Raises:
        PlacerError: if the traces have other equations.
    """
    axes: dict[Any, Axes] = {}
    equal: set[Any] = set(flat.consts)
    rows = 0
    for var, is_of_rows in zip(flat.invars, has_rows, strict=False):
        axes[var] = (0,) if is_of_rows else ()
        if is_of_rows:
            rows = var.aval.shape[0]
        else:
            equal.add(var)
    ours, theirs = flat.equations, twin.equations
    names = [[each.eqn.primitive for each in side] for side in (ours, theirs)]
    if names[0] != names[1]:
        raise PlacerError(
            "its equations depend on the number of rows",
            hint="perform the same operations for any number of rows",
        )
    for one, other in zip(ours, theirs, strict=True):
        for var, same in zip(one.eqn.outvars, other.eqn.outvars, strict=True):
            sizes = zip(var.aval.shape, same.aval.shape, strict=True)
            axes[var] = tuple(i for i, (a, b) in enumerate(sizes) if a != b)
    return PartValues(parts, rows, axes, equal)
