"""The correction of late gradients of DC-ASGD (Zheng et al., Asynchronous Stochastic
Gradient Descent with Delay Compensation, 2017)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from placer.tables.half_sums import dtype_of_sums, round_to

Array = npt.NDArray[Any]


def compensate(gradient: Array, now: Array, base: Array, factor: float) -> Array:
    """Return g + factor * g * g * (now - base): the gradient at `now`, by a first-order
    approximation with the diagonal of g gᵀ in place of the Hessian.

    Args:
        gradient: g, computed at `base`, of shape [n].
        now, base: parameters, of the shape and dtype of `gradient`. Half floats are computed in
            float32, and the result is rounded once.
        factor: the lambda of the paper, divided by the part of the rows of the batch
            that g is of, because the square is that of the gradient of all rows.
    """
    kind = dtype_of_sums(gradient.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        correction = np.subtract(now, base, dtype=kind)
        correction *= gradient
        correction *= gradient
        correction *= kind.type(factor)
        correction += gradient
    rounded: Array = round_to(correction, gradient.dtype)
    return rounded
