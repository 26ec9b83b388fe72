"""Metrics."""

from collections.abc import Callable

from op_use import Use

DIFFERENTIABLE: list[Use] = []

WITHOUT_GRADIENT = [
    Use("accuracy", ("float32[batch, 3]", "int32[batch]")),
    Use("accuracy", ("float32[batch, 2, 3]", "int32[batch, 2]")),
    Use("accuracy", ("float32[8, 3]", "int32[8]")),
]

PLAIN: dict[str, Callable] = {}
