"""Sums of squares without rounding."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from placer.tables.exact_squares import exact_squares, rounded_sum

FINITE = {
    dtype: arrays.arrays(
        dtype,
        st.integers(0, 40),
        elements=arrays.from_dtype(
            np.dtype(dtype), allow_nan=False, allow_infinity=False
        ),
    )
    for dtype in (np.float16, np.float32, np.float64)
}


def expected(values) -> float:
    """Return the sum of squares that is rounded once."""
    total = sum((Fraction(float(each)) ** 2 for each in values), Fraction(0))
    try:
        return float(total)
    except OverflowError:
        return np.inf


@pytest.mark.parametrize("dtype", FINITE)
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_sum_is_rounded_once(dtype, data):
    values = data.draw(FINITE[dtype])
    cut = data.draw(st.integers(0, values.size))
    sums = [exact_squares([values[:cut]]), exact_squares([values[cut:]])]
    assert rounded_sum(sums, "float64") == expected(values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_the_sum_does_not_depend_on_the_order(dtype):
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.integers(-15, 15, 20_000)
    values = (rng.standard_normal(20_000) * scales).astype(dtype)
    whole = exact_squares([values])
    shuffled = rng.permutation(values)
    parts = [exact_squares([shuffled[7::3], shuffled[:7]])]
    parts += [exact_squares([shuffled[7 + i :: 3].reshape(1, -1)]) for i in (1, 2)]
    assert rounded_sum(parts, "float64") == rounded_sum([whole], "float64")


def test_many_equal_values_do_not_overflow():
    largest = np.full(1_000_000, np.nextafter(np.float32(2), np.float32(0)))
    total = rounded_sum([exact_squares([largest])], "float64")
    assert total == float(Fraction(float(largest[0])) ** 2 * largest.size)
    double = np.full(100_000, np.nextafter(2.0, 0.0))
    total = rounded_sum([exact_squares([double])], "float64")
    assert total == float(Fraction(double[0]) ** 2 * double.size)


@pytest.mark.parametrize(
    ("values", "result"),
    [
        ([], 0.0),
        ([1.0, np.inf], np.inf),
        ([-np.inf, np.inf], np.inf),
        ([np.inf, np.nan], np.nan),
        ([-np.nan, 1.0], np.nan),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_that_are_not_finite_are_seen(values, result, dtype):
    finite = exact_squares([np.ones(3, dtype)])
    sums = [finite, exact_squares([np.array(values, dtype)])]
    expected = 3.0 + result
    np.testing.assert_equal(rounded_sum(sums, dtype), dtype(expected))


def test_a_sum_that_is_too_large_is_infinite():
    sums = [exact_squares([np.array([1e300])])]
    assert rounded_sum(sums, "float64") == np.inf
    sums = [exact_squares([np.array([1e30], np.float32)])]
    assert rounded_sum(sums, "float32") == np.inf
