"""call, which has no uses here: tests/passes and tests/oracle test it."""

from collections.abc import Callable

from support.op_use import Use

DIFFERENTIABLE: list[Use] = []

WITHOUT_GRADIENT: list[Use] = []

PLAIN: dict[str, Callable] = {}
