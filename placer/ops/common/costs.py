"""Costs of elementwise ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placer.ops.declaration import Attrs
from placer.ops.operand import Types


def flops_per_element(each: int) -> Callable[[Types, Attrs], int]:
    """Return a `flops` function: `each` operations per element of the first operand."""
    return lambda types, attrs: each * types[0].numel()


def grad_flops_per_element(*each: int) -> Callable[[Types, Attrs, Sequence[int]], int]:
    """Return a `grad_flops` function with these operations per element and operand."""
    return lambda types, attrs, wrt: sum(each[i] for i in wrt) * types[0].numel()
