"""The size of an exact sum; see `placer.tables.exact_squares`."""

LIMBS = 134
"""Limbs of 32 bits, for squares of float64 values and 2**60 of them, and one more for
infinities and NaNs."""
