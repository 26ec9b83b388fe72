"""Computes random orthogonal matrices row by row, with the same bits on every machine.

The matrix is the product of Householder reflections of n normal vectors with n, n - 1, …
elements. This is the orthogonal factor of the QR decomposition of a normal matrix, with a
positive diagonal of R. Its distribution is uniform (Haar measure; Stewart 1980, Mezzadri
2007).

LAPACK is not used, because the order of its sums depends on threads and the processor. A row
does not depend on later rows. A slice therefore has the bits of the whole matrix, and later
rows need not be computed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_CACHED = (
    1 << 16
)  # elements to compute at a time; two such arrays fit into the L2 cache


def orthonormal_rows(normals: Floats, first: int) -> Floats:
    """Return rows [first, k) of k orthonormal rows.

    Args:
        normals: normally distributed numbers of shape [k, n], with k <= n. Row j of the
            result depends only on rows 0 to j, and only on columns i, i + 1, … of row i.
        first: the first row to return.

    Returns:
        An array of shape [k - first, n].
    """
    k, n = normals.shape
    rows = np.zeros((k - first, n))
    reflections = np.zeros((k, n))
    for j in range(k):
        x = normals[j, j:]
        length = np.sqrt((x * x).sum())
        if j >= first:
            rows[j - first, j:] = x / length
        # The reflection I - v vᵀ maps x to a multiple of the first unit vector.
        v = reflections[j, j:]
        v[:] = x
        v[0] += np.copysign(length, x[0])
        v *= 1.0 / np.sqrt(length * (length + abs(x[0])))
    rows_at_once = max(1, _CACHED // n)
    spare = np.empty((rows_at_once, n))
    for low in range(first, k, rows_at_once):
        _reflect(
            rows[low - first : low - first + rows_at_once], low, reflections, spare
        )
    return rows


def _reflect(rows: Floats, low: int, reflections: Floats, spare: Floats) -> None:
    """Apply the reflections of all earlier rows to each row; rows are numbered from `low`."""
    for j in reversed(range(low + len(rows) - 1)):
        v = reflections[j, j:]
        later = rows[max(0, j + 1 - low) :, j:]
        products = spare[: len(later), j:]
        np.multiply(later, v, out=products)
        # `sum` adds pairwise along a row, in an order that depends only on the length.
        np.multiply(products.sum(axis=1, keepdims=True), v, out=products)
        later -= products
