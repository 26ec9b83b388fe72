"""Constants."""

from collections.abc import Callable

from support.op_use import Use

DIFFERENTIABLE: list[Use] = []

WITHOUT_GRADIENT = [
    Use("constant", (), {"value": 2.5, "dtype": "float32", "shape": [2, 3]}),
    Use("constant", (), {"value": 1.0, "dtype": "float32"}),
    Use("constant", (), {"value": True, "dtype": "bool", "shape": [2]}),
]

PLAIN: dict[str, Callable] = {}
