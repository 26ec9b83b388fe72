"""stop_gradient."""

from collections.abc import Callable

from support.op_use import Use

DIFFERENTIABLE: list[Use] = []

WITHOUT_GRADIENT = [
    Use("stop_gradient", ("float32[batch, 4]",)),
    Use("stop_gradient", ("int32[4]",)),
]

PLAIN: dict[str, Callable] = {}
