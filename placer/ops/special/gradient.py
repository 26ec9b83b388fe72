"""stop_gradient: the identity, with a gradient of 0."""

from __future__ import annotations

from placer.ops.common.checks import check_arity, rowwise
from placer.ops.declaration import Attrs, Case, Declaration, Operand, Types
from placer.types import TensorType

_OPERANDS = (Operand("x", "any dtype and shape"),)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_arity("stop_gradient", _OPERANDS, types)
    return (types[0],)


STOP_GRADIENT = Declaration(
    "stop_gradient",
    "Returns x, and stops the gradient: ops that use the result treat it as a"
    " constant.",
    _OPERANDS,
    _infer,
    rowwise,
    lambda types, attrs: 0,
    lambda types, attrs, wrt: 0,
    linear=lambda types, attrs: ((0,),),
    differentiable=False,
    formula="out = x; dx = 0",
    source="jax.lax.stop_gradient, tf.stop_gradient",
    cases=(Case(("float32[batch, 8]",)),),
    example="{name: target, op: stop_gradient, in: teacher}",
)

DECLARATIONS = (STOP_GRADIENT,)
