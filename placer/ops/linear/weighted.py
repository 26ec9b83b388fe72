"""Layers that multiply x by a weight w, add a bias b and apply an activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from placer.errors import OpError
from placer.ops.common.roles import make_parameters
from placer.ops.declaration import Attrs, Declaration, LayerParameter
from placer.ops.elementwise.activation import (
    BACKWARD_FLOPS,
    FORWARD_FLOPS,
    activation_residuals,
    linear_unless_activated,
)
from placer.ops.operand import Operand, Types
from placer.place.types import Dim, TensorType


def declare_weighted(
    kind: str,
    doc: str,
    operands: tuple[Operand, ...],
    infer: Callable[[Types, Attrs], tuple[TensorType, ...]],
    product_flops: Callable[[Types, Attrs], int],
    **fields: Any,
) -> Declaration:
    """Declare a layer with the operands x, w and b, and the attribute `activation`.

    `product_flops` counts the operations of the product of x and w. The gradient of
    each factor costs the same.
    """

    def flops(types: Types, attrs: Attrs) -> int:
        per_element = FORWARD_FLOPS[attrs["activation"]] + (len(types) == 3)
        out = infer(types, attrs)[0].numel()
        return product_flops(types, attrs) + per_element * out

    def grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
        per_element = BACKWARD_FLOPS[attrs["activation"]] * bool(wrt) + (2 in wrt)
        out = infer(types, attrs)[0].numel()
        products = sum(operand < 2 for operand in wrt)
        return product_flops(types, attrs) * products + per_element * out

    return Declaration(
        kind,
        doc,
        operands,
        infer,
        flops=flops,
        grad_flops=grad_flops,
        linear=linear_unless_activated,
        saves=lambda types, attrs: (0, 1),
        residuals=lambda types, attrs: activation_residuals(
            attrs["activation"], infer(types, attrs)[0]
        ),
        **fields,
    )


def check_bias(types: Types, size: Dim) -> None:
    """Raise OpError if a bias b is present and its shape is not [size]."""
    if len(types) == 3 and types[2].shape != (size,):
        _, w, b = types
        raise OpError(f"needs 'b' [{size}] for 'w' {w}, 'b' is {b}", operand=2)


def make_weights(
    dtype: str, shape: Sequence[int], size: int, bias: bool = True
) -> tuple[LayerParameter, ...]:
    """Return the parameter w, and b if `bias`."""
    shapes = {"w": shape, "b": (size,)} if bias else {"w": shape}
    return make_parameters(dtype, shapes, {"w": "xavier_uniform"})
