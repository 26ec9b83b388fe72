"""stop_gradient: where backward ends."""

from __future__ import annotations

from placer.ops.common.checks import arity, each_row
from placer.ops.declaration import Attrs, Case, Declaration, Operand, Types
from placer.types import TensorType

_ONE = (Operand("x", "any dtype and shape"),)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("stop_gradient", _ONE, types)
    return (types[0],)


STOP_GRADIENT = Declaration(
    "stop_gradient",
    "A value as it is, and no gradient: what uses it takes it for given.",
    _ONE,
    _infer,
    each_row,
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
