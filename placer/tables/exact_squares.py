"""Computes sums of squares without rounding, independent of the order of addition.

Each node adds its squares exactly, the nodes add their sums exactly, and only the final
result is rounded. A norm therefore has the same bits on any number of nodes. An exact sum is
a fixed-point number in limbs of 32 bits. Its lowest bit is the square of the smallest
float64.

Partial sums are kept by exponent, so that adding a square needs only one integer
multiplication. Source: R. M. Neal, "Fast exact summation using small and large
superaccumulators", 2015.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from placer.plan.settings.sparse.exact_sums import LIMBS
from placer.tables.machine_code import compiled

Array = np.ndarray[Any, np.dtype[Any]]

_LIMB_BITS = 32
_LOWEST = 2148
"""The lowest bit of an exact sum has the value 2 ** -_LOWEST."""
_FULL = 1 << 62
_LOW_BITS = (1 << 32) - 1
_NAN = 1 << 32
"""Added to the last limb, which counts infinities, if a value is NaN."""


@compiled
def _add_float32(bits: Array, low: Array, high: Array) -> None:
    """Add the squares of float32 values, given as int32, to the sums of their exponents.

    Neighbors use different rows of `low`, so that consecutive additions do not depend on
    each other.
    """
    for i in range(bits.size):
        number = bits[i]
        exponent = (number >> 23) & 0xFF
        mantissa = np.int64(number & 0x7FFFFF)
        if exponent == 0:
            exponent = 1  # subnormal
        else:
            mantissa |= 0x800000
        lane = i & 3
        total = low[lane, exponent] + mantissa * mantissa
        if total >= _FULL:
            high[lane, exponent] += total >> 32
            total &= _LOW_BITS
        low[lane, exponent] = total


@compiled
def _add_float64(bits: Array, low: Array, high: Array) -> None:
    """Add the squares of float64 values, given as int64, to the sums of their exponents.

    A mantissa is split as m = a * 2 ** 27 + b. The products a * a, a * b and b * b are added
    to separate rows of `low`.
    """
    for i in range(bits.size):
        number = bits[i]
        exponent = (number >> 52) & 0x7FF
        mantissa = number & 0xFFFFFFFFFFFFF
        if exponent == 0:
            exponent = 1
        else:
            mantissa |= 0x10000000000000
        a, b = mantissa >> 27, mantissa & 0x7FFFFFF
        for lane in range(3):
            part = a * a if lane == 0 else (a * b if lane == 1 else b * b)
            total = low[lane, exponent] + part
            if total >= _FULL:
                high[lane, exponent] += total >> 32
                total &= _LOW_BITS
            low[lane, exponent] = total


def exact_squares(values: Sequence[Array]) -> Array:
    """Return the sum of the squares of all elements.

    Args:
        values: floating-point arrays of any shape, including half floats.

    Returns:
        An exact sum: int64 of shape [LIMBS].
    """
    total, special = 0, 0
    for value in values:
        of_value, of_special = _sum_of(np.ascontiguousarray(value).reshape(-1))
        total, special = total + of_value, special + of_special
    limbs = np.empty(LIMBS, np.int64)
    raw = total.to_bytes((LIMBS - 1) * _LIMB_BITS // 8, "little")
    limbs[:-1] = np.frombuffer(raw, "<u4")
    limbs[-1] = special
    return limbs


def _sum_of(flat: Array) -> tuple[int, int]:
    """Return the sum of squares in units of the lowest bit, and the last limb."""
    if flat.dtype == np.float64:
        low = np.zeros((3, 1 << 11), np.int64)
        high = np.zeros_like(low)
        _add_float64(flat.view(np.int64), low, high)
        lowest = [52, 26, -2]  # of a * a, a * b and b * b, for an exponent of 0
    else:
        flat = flat.astype(np.float32, copy=False)
        low = np.zeros((4, 1 << 8), np.int64)
        high = np.zeros_like(low)
        _add_float32(flat.view(np.int32), low, high)
        lowest = [_LOWEST - 2 * (127 + 23)] * 4
    special = 0
    if low[:, -1].any() or high[:, -1].any():
        special = int(np.isinf(flat).sum()) + _NAN * int(np.isnan(flat).any())
        low[:, -1] = high[:, -1] = 0
    total = 0
    for lane, exponent in np.argwhere(low | high):
        part = int(low[lane, exponent]) + (int(high[lane, exponent]) << 32)
        total += part << (lowest[lane] + 2 * int(exponent))
    return total, special


def rounded_sum(sums: Sequence[Array], dtype: DTypeLike) -> Array:
    """Return the sum of exact sums as a floating-point scalar.

    The sum is rounded to float64 and then to `dtype`. It is NaN if a square is NaN, and
    infinity if the sum is too large.
    """
    limbs = [sum(each) for each in zip(*(s.tolist() for s in sums), strict=True)]
    special = limbs.pop()
    total = sum(limb << _LIMB_BITS * i for i, limb in enumerate(limbs))
    try:
        value = total / (1 << _LOWEST)  # correctly rounded
    except OverflowError:
        value = math.inf
    if special:
        value = math.nan if special >= _NAN else math.inf
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(dtype)
