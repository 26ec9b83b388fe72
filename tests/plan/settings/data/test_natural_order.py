"""The order in which globs select columns."""

from itertools import permutations

import pytest

from placer.plan.settings.data.columns import in_natural_order


@pytest.mark.parametrize(
    "names",
    [
        ["x0", "x1", "x2", "x10", "x100"],
        ["a", "a1", "a2b1", "a2b11", "b"],
        ["1", "2", "10"],
        ["x.1", "x0", "x00", "x01", "x1", "xa"],
        ["X2", "x1"],
        ["day 9.5", "day 10.4", "é1"],
        ["n" + "9" * 5000, "n1" + "0" * 5000],
    ],
)
def test_numbers_in_names_count_as_numbers(names):
    for each in [*permutations(names)][:200]:
        assert in_natural_order(each) == names


def test_a_name_may_be_there_twice():
    assert in_natural_order(["b", "a", "b"]) == ["a", "b", "b"]
