"""Random orthogonal matrices, row by row, with sums in one order on every machine.

A Householder reflection for each of n normal vectors, of n, n - 1, … elements, make
together what the QR decomposition of a normal matrix gives, with R's diagonal positive:
an orthogonal matrix of the uniform (Haar) distribution (Stewart 1980; Mezzadri 2007).
LAPACK's own sums depend on its threads and the processor; those here do not, and rows
are made one by one, so that a slice costs no more than its own and has the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_CACHED = 1 << 16  # elements worked on at once: two such arrays stay in the L2 cache


def orthonormal_rows(normals: Floats, first: int) -> Floats:
    """Rows [first, k) of k orthonormal ones, from normal numbers [k, n], k <= n.

    Row j depends on rows [0, j] of `normals`, from column j on, alone.
    """
    k, n = normals.shape
    rows = np.zeros((k - first, n))
    mirrors = np.zeros((k, n))
    for j in range(k):
        x = normals[j, j:]
        length = np.sqrt((x * x).sum())
        if j >= first:
            rows[j - first, j:] = x / length
        # The reflection I - v vᵀ takes x to a multiple of the first axis.
        v = mirrors[j, j:]
        v[:] = x
        v[0] += np.copysign(length, x[0])
        v *= 1.0 / np.sqrt(length * (length + abs(x[0])))
    together = max(1, _CACHED // n)
    spare = np.empty((together, n))
    for low in range(first, k, together):
        _reflect(rows[low - first : low - first + together], low, mirrors, spare)
    return rows


def _reflect(rows: Floats, low: int, mirrors: Floats, spare: Floats) -> None:
    """Reflect rows, numbered from `low`, by every mirror before each one's own."""
    for j in reversed(range(low + len(rows) - 1)):
        v = mirrors[j, j:]
        later = rows[max(0, j + 1 - low) :, j:]
        products = spare[: len(later), j:]
        np.multiply(later, v, out=products)
        # `sum` adds along a row in pairs, in an order that its length alone fixes.
        np.multiply(products.sum(axis=1, keepdims=True), v, out=products)
        later -= products
