"""A user's function: see tests/passes and tests/oracle for what specs make of it."""

from collections.abc import Callable

from support.op_use import Use

DIFFERENTIABLE: list[Use] = []

WITHOUT_GRADIENT: list[Use] = []

PLAIN: dict[str, Callable] = {}
