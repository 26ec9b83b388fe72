"""Marks the cases of a test that run only with `-m slow`."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(fast: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """Return the cases `every` for `parametrize`; those not in `fast` are marked slow.

    A tuple has the values of several arguments.
    """
    quick, cases = list(fast), list(every)
    assert all(each in cases for each in quick), f"{quick} are not all of {cases}"
    return [each if each in quick else _slow(each) for each in cases]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
