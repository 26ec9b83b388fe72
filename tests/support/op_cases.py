"""Uses of all ops for tests, and a plain formula for each op."""

from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import pytest

from placer.ops.families import FAMILIES
from support.op_use import BATCH, Use

_MODULES = [
    import_module(f"support.op_uses.{family.__name__.split('.')[-1]}")
    for family in FAMILIES
]

DIFFERENTIABLE: list[Use] = [u for m in _MODULES for u in m.DIFFERENTIABLE]
WITHOUT_GRADIENT: list[Use] = [u for m in _MODULES for u in m.WITHOUT_GRADIENT]
PLAIN = {kind: plain for m in _MODULES for kind, plain in m.PLAIN.items()}
"""A formula for each differentiable kind, with the same operands and attributes."""

ALL = [*DIFFERENTIABLE, *WITHOUT_GRADIENT]


def mostly_slow(uses: Iterable[Use], each: int = 1) -> list[Any]:
    """Return the uses as parameters of a test that compiles.

    All but the first `each` of each kind are marked as slow.
    """
    seen: Counter[str] = Counter()
    params = []
    for use in uses:
        seen[use.kind] += 1
        marks = [pytest.mark.slow] if seen[use.kind] > each else []
        params.append(pytest.param(use, marks=marks, id=str(use)))
    return params


__all__ = [
    "ALL",
    "BATCH",
    "DIFFERENTIABLE",
    "PLAIN",
    "WITHOUT_GRADIENT",
    "Use",
    "mostly_slow",
]
