"""What the compiler puts in."""

from collections.abc import Callable

from op_use import Use

DIFFERENTIABLE: list[Use] = []

WITHOUT_GRADIENT = [
    Use("accumulate", ("float32[batch, 4]",) * 3),
    Use("accumulate", ("float32[4]",)),
    Use("sum_of_squares", ("float32[4, 3]", "float32[3]", "float32[]")),
    Use("sum_of_squares", ("float32[batch, 3]", "float32[batch]")),
    Use("clip_scale", ("float32[]", "float32[]"), {"max_norm": 0.5}),
]

PLAIN: dict[str, Callable] = {}
