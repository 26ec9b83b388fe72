"""Marks of tests: cases that run only with `-m slow`, and a warning that is expected."""

from collections.abc import Iterable
from typing import Any

import pytest

MAY_PAIR_ROWS = pytest.mark.filterwarnings(
    "ignore:.* combines each row of .* with all rows of :placer.errors.SpecWarning"
)
"""For tests of drawn models, which may combine all pairs of rows."""

MAY_TRAIN_NOTHING = pytest.mark.filterwarnings(
    "ignore:.* trains nothing. its learning rate is always 0:placer.errors.SpecWarning"
)
"""For tests with a learning rate of 0."""


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
