"""Costs of ops that compute each element on its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placer.ops.declaration import Attrs
from placer.ops.operand import Types


def flops_per_element(each: int) -> Callable[[Types, Attrs], int]:
    """Return `flops` with `each` operations per element of the first operand."""
    return lambda types, attrs: each * types[0].numel()


def grad_flops_per_element(*each: int) -> Callable[[Types, Attrs, Sequence[int]], int]:
    """Return `grad_flops`, given the operations per element for each operand."""
    return lambda types, attrs, wrt: sum(each[i] for i in wrt) * types[0].numel()
