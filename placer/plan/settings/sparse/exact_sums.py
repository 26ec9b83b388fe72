"""The size of an exact sum; see `placer.tables.exact_squares`."""

LIMBS = 134
"""Number of 32-bit limbs: enough for 2**60 squares of float64 values, plus one for infinities
and NaNs."""
