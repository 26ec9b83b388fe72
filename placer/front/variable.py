"""A value of a program, as Python code holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placer.callsite import caller
from placer.errors import SpecError, did_you_mean
from placer.types import Dim, TensorType

if TYPE_CHECKING:
    from placer.front.program import Program


@dataclass(frozen=True, eq=False, repr=False)
class Variable:
    """A value: its name, its type, and the op that makes it, by name.

    `+`, `-`, `*`, `/` and `@` make the ops add, sub, mul, div and matmul; a number on
    one side becomes an op `constant` of the other's dtype.
    """

    name: str
    type: TensorType
    op: str
    program: Program

    __array_ufunc__ = None
    """An array on the left of an operator leaves it to the variable, as a whole."""

    def __repr__(self) -> str:
        return f"<Variable {self.name}: {self.type}>"

    def __bool__(self) -> bool:
        raise SpecError(
            f"'{self.name}' has no value while the model is written",
            span=caller(),
            hint="choose by what Python knows, or between values by layers.where",
        )

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Ints, and `batch` for the rows of the global batch."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """As `float32`; that of an int64 input is int32 where the precision is float32."""
        return self.type.dtype

    def parameter(self, key: str) -> Variable:
        """The parameter that the op of this value calls `key`, as `w` of an fc: its
        own, or the one that it shares. Raises SpecError where there is none."""
        found = self.program.parameters_of(self.op)
        if key not in found:
            raise SpecError(
                f"op '{self.op}' has no parameter '{key}'",
                span=caller(),
                hint=did_you_mean(key, found),
            )
        return found[key]

    def __add__(self, other: Variable | float) -> Variable:
        return self.program.binary("add", self, other)

    def __radd__(self, other: float) -> Variable:
        return self.program.binary("add", other, self)

    def __sub__(self, other: Variable | float) -> Variable:
        return self.program.binary("sub", self, other)

    def __rsub__(self, other: float) -> Variable:
        return self.program.binary("sub", other, self)

    def __mul__(self, other: Variable | float) -> Variable:
        return self.program.binary("mul", self, other)

    def __rmul__(self, other: float) -> Variable:
        return self.program.binary("mul", other, self)

    def __truediv__(self, other: Variable | float) -> Variable:
        return self.program.binary("div", self, other)

    def __rtruediv__(self, other: float) -> Variable:
        return self.program.binary("div", other, self)

    def __matmul__(self, other: Variable) -> Variable:
        return self.program.binary("matmul", self, other)

    def __rmatmul__(self, other: float) -> Variable:
        return self.program.binary("matmul", other, self)
