"""Uses of ops that several tests draw on, and what each op is in a plain formula."""

from importlib import import_module

from op_use import BATCH, Use

from placer.ops.declarations import FAMILIES

_MODULES = [import_module(f"families.{name}") for name in FAMILIES]

DIFFERENTIABLE: list[Use] = [u for m in _MODULES for u in m.DIFFERENTIABLE]
WITHOUT_GRADIENT: list[Use] = [u for m in _MODULES for u in m.WITHOUT_GRADIENT]
PLAIN = {kind: plain for m in _MODULES for kind, plain in m.PLAIN.items()}
"""A formula for each differentiable kind: the same operands and attributes."""

ALL = [*DIFFERENTIABLE, *WITHOUT_GRADIENT]

__all__ = ["ALL", "BATCH", "DIFFERENTIABLE", "PLAIN", "WITHOUT_GRADIENT", "Use"]
