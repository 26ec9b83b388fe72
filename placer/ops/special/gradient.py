"""stop_gradient: the identity, with a gradient of 0."""

from __future__ import annotations

from placer.ops.declaration import Declaration, case
from placer.ops.operand import Operand

STOP_GRADIENT = Declaration(
    "stop_gradient",
    "Returns x, and stops the gradient: the gradient treats the result as a constant.",
    (Operand("x", "any dtype and shape"),),
    linear=lambda types, attrs: ((0,),),
    differentiable=False,
    formula="out = x; dx = 0",
    source="jax.lax.stop_gradient, tf.stop_gradient",
    cases=(case("float32[batch, 8]"),),
)
