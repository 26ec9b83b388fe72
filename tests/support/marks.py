"""Which cases of a test run in every run of the suite, and which in the slow one."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(fast: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """The cases of `every` for `parametrize`, those that are not in `fast` marked slow.

    A tuple is the values of several arguments.
    """
    quick, cases = list(fast), list(every)
    assert all(each in cases for each in quick), f"{quick} are not all of {cases}"
    return [each if each in quick else _slow(each) for each in cases]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
