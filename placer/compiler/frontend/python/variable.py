"""`Variable`: a value of a program in Python code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placer.errors import did_you_mean
from placer.place.types import Dim, TensorType
from placer.system.callsite import call_error

if TYPE_CHECKING:
    from placer.compiler.frontend.python.program import Program


@dataclass(frozen=True, eq=False, repr=False)
class Variable:
    """A value of a program: the result of an op, an input or a parameter.

    The operators `+`, `-`, `*`, `/` and `@` record the ops `add`, `sub`, `mul`, `div`
    and `matmul` in the current program. A number on one side becomes an op `constant`
    with the dtype of the other side.

    The functions of `placer.layers` and `placer.trace` return Variables. Programs do
    not create them directly.

    Args:
        name: The name of the value.
        type: Its type, such as `float32[batch, 64]`.
        op: The name of the op that computes it.
        program: The program that it belongs to.

    Raises:
        SpecError: If the other operand is neither a number nor a value of the same
            program, or if the value is used as a condition, as in `if value:`.

    Example:
        h = layers.fc(image, 128)
        h.name, h.shape, h.dtype  # ("fc_0", ("batch", 128), "float32")
        penalty = 1e-4 * layers.reduce_sum(h.parameter("w") * h.parameter("w"))
    """

    name: str
    type: TensorType
    op: str
    program: Program

    __array_ufunc__ = None
    """Makes numpy leave `array + variable` to `Variable.__radd__`."""

    def __repr__(self) -> str:
        return f"<Variable {self.name}: {self.type}>"

    def __bool__(self) -> bool:
        raise call_error(
            f"'{self.name}' has no value while the program is built",
            "use a Python value as the condition, or select with layers.where",
        )

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The dimensions: ints, and `"batch"` for the rows of the global batch."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """The dtype, such as `float32`. If the precision is float32, an int64 input has
        the dtype int32."""
        return self.type.dtype

    def parameter(self, key: str) -> Variable:
        """Return a parameter of the op that computes this value.

        Args:
            key: The op's name for the parameter, such as `w` of an `fc`.

        Returns:
            The parameter, which the op may share with another op.

        Raises:
            SpecError: If the op has no such parameter.

        Example:
            h = layers.fc(image, 64)
            tied = layers.fc(other, 64, params={"w": h.parameter("w")})
        """
        parameters = self.program.parameters_of(self.op)
        if key not in parameters:
            message = f"op '{self.op}' has no parameter '{key}'"
            raise call_error(message, did_you_mean(key, parameters))
        return parameters[key]

    def __add__(self, other: Variable | float) -> Variable:
        return self.program.record_binary("add", self, other)

    def __radd__(self, other: float) -> Variable:
        return self.program.record_binary("add", other, self)

    def __sub__(self, other: Variable | float) -> Variable:
        return self.program.record_binary("sub", self, other)

    def __rsub__(self, other: float) -> Variable:
        return self.program.record_binary("sub", other, self)

    def __mul__(self, other: Variable | float) -> Variable:
        return self.program.record_binary("mul", self, other)

    def __rmul__(self, other: float) -> Variable:
        return self.program.record_binary("mul", other, self)

    def __truediv__(self, other: Variable | float) -> Variable:
        return self.program.record_binary("div", self, other)

    def __rtruediv__(self, other: float) -> Variable:
        return self.program.record_binary("div", other, self)

    def __matmul__(self, other: Variable) -> Variable:
        return self.program.record_binary("matmul", self, other)

    def __rmatmul__(self, other: float) -> Variable:
        return self.program.record_binary("matmul", other, self)
