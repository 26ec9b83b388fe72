"""metric, which has no uses here: tests/spec and tests/oracle test it."""

from collections.abc import Callable

from support.op_use import Use

DIFFERENTIABLE: list[Use] = []

WITHOUT_GRADIENT: list[Use] = []

PLAIN: dict[str, Callable] = {}
