"""Corrects late gradients as in DC-ASGD.

Source: Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation",
2017.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from placer.tables.half_sums import dtype_of_sums, round_to

Array = npt.NDArray[Any]


def compensate(gradient: Array, now: Array, base: Array, factor: float) -> Array:
    """Return g + factor * g * g * (now - base), an estimate of the gradient at `now`.

    It is a first-order approximation that replaces the Hessian with the diagonal of g gᵀ.
    Half floats are computed in float32, and the result is rounded once.

    Args:
        gradient: g, the gradient at `base`, of shape [n].
        now: the current parameters, of the shape and dtype of `gradient`.
        base: the parameters from which g was computed, of the same shape and dtype.
        factor: the paper's lambda, divided by the fraction of the batch's rows in g. The
            paper squares the gradient of all rows.
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
