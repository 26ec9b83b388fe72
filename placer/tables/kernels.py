"""Kernels: the loops of the optimizer rules, each one pass over flat arrays, in place.

`compiled_kernels.py` compiles them with numba for float32 or float64. A kernel's
arguments are the arrays of its `KernelPhase` (see `rules.py`), all of one length; then
`gradients`, a tuple of one array per source; then `coefficients`, a tuple whose first
element is the scale and whose rest is computed by the `KernelPhase`.

Arrays and coefficients have one dtype and are combined with no literal, so everything
is computed in that dtype, and every operation is rounded as written. Hence the update
of a slice has the same bits as that slice of the whole update.

`scale` multiplies the sum of the gradients. `bias_correction1` is 1 - b1**step, which
corrects a moment that starts at zero (Kingma and Ba 2015, Adam). Optax multiplies by a
reciprocal square root in places where these kernels divide by the root.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

Array = npt.NDArray[Any]
Sources = tuple[Array, ...]
Coefficients = tuple[Any, ...]


@register_jitable
def _total(gradients: Sources, scale: Any, i: int) -> Any:
    """Return element i of the gradients, summed from left to right, times the scale."""
    total = gradients[0][i]
    for source in range(1, len(gradients)):
        total += gradients[source][i]
    return scale * total


def sgd(values: Array, gradients: Sources, coefficients: Coefficients) -> None:
    scale, rate = coefficients
    for i in range(values.size):
        values[i] -= rate * _total(gradients, scale, i)


def momentum(
    values: Array, trace: Array, gradients: Sources, coefficients: Coefficients
) -> None:
    scale, rate, decay = coefficients
    for i in range(values.size):
        t = _total(gradients, scale, i) + decay * trace[i]
        trace[i] = t
        values[i] -= rate * t


def nesterov(
    values: Array, trace: Array, gradients: Sources, coefficients: Coefficients
) -> None:
    scale, rate, decay = coefficients
    for i in range(values.size):
        g = _total(gradients, scale, i)
        t = g + decay * trace[i]
        trace[i] = t
        values[i] -= rate * (g + decay * t)


def adagrad(
    values: Array, sum_of_squares: Array, gradients: Sources, coefficients: Coefficients
) -> None:
    scale, rate, eps, zero = coefficients
    for i in range(values.size):
        g = _total(gradients, scale, i)
        s = g * g + sum_of_squares[i]
        sum_of_squares[i] = s
        values[i] -= rate * (g / np.sqrt(s + eps) if s > zero else zero * g)


def rmsprop(
    values: Array, nu: Array, gradients: Sources, coefficients: Coefficients
) -> None:
    scale, rate, decay, one_minus_decay, eps = coefficients
    for i in range(values.size):
        g = _total(gradients, scale, i)
        v = one_minus_decay * (g * g) + decay * nu[i]
        nu[i] = v
        values[i] -= rate * (g / np.sqrt(v + eps))


def rmsprop_trace(
    values: Array,
    nu: Array,
    trace: Array,
    gradients: Sources,
    coefficients: Coefficients,
) -> None:
    scale, rate, decay, one_minus_decay, eps, momentum = coefficients
    for i in range(values.size):
        g = _total(gradients, scale, i)
        v = one_minus_decay * (g * g) + decay * nu[i]
        nu[i] = v
        t = momentum * trace[i] - rate * (g / np.sqrt(v + eps))
        trace[i] = t
        values[i] += t


def rmsprop_centered(
    values: Array, nu: Array, mu: Array, gradients: Sources, coefficients: Coefficients
) -> None:
    scale, rate, decay, one_minus_decay, eps = coefficients
    for i in range(values.size):
        g = _total(gradients, scale, i)
        v = one_minus_decay * (g * g) + decay * nu[i]
        m = one_minus_decay * g + decay * mu[i]
        nu[i] = v
        mu[i] = m
        values[i] -= rate * (g / np.sqrt(v - m * m + eps))


def rmsprop_centered_trace(
    values: Array,
    nu: Array,
    mu: Array,
    trace: Array,
    gradients: Sources,
    coefficients: Coefficients,
) -> None:
    scale, rate, decay, one_minus_decay, eps, momentum = coefficients
    for i in range(values.size):
        g = _total(gradients, scale, i)
        v = one_minus_decay * (g * g) + decay * nu[i]
        m = one_minus_decay * g + decay * mu[i]
        nu[i] = v
        mu[i] = m
        t = momentum * trace[i] - rate * (g / np.sqrt(v - m * m + eps))
        trace[i] = t
        values[i] += t


def adadelta(
    values: Array,
    e_g: Array,
    e_x: Array,
    gradients: Sources,
    coefficients: Coefficients,
) -> None:
    scale, rate, rho, one_minus_rho, eps = coefficients
    for i in range(values.size):
        g = _total(gradients, scale, i)
        s = one_minus_rho * (g * g) + rho * e_g[i]
        x = np.sqrt(e_x[i] + eps) / np.sqrt(s + eps) * g
        e_g[i] = s
        e_x[i] = one_minus_rho * (x * x) + rho * e_x[i]
        values[i] -= rate * x


def adam(
    values: Array, mu: Array, nu: Array, gradients: Sources, coefficients: Coefficients
) -> None:
    """The kernel of adam and adamw: for adam, weight_decay is zero."""
    (
        scale,
        rate,
        b1,
        one_minus_b1,
        bias_correction1,
        b2,
        one_minus_b2,
        bias_correction2,
        eps,
        weight_decay,
    ) = coefficients
    for i in range(values.size):
        g = _total(gradients, scale, i)
        m = one_minus_b1 * g + b1 * mu[i]
        v = one_minus_b2 * (g * g) + b2 * nu[i]
        mu[i] = m
        nu[i] = v
        change = m / bias_correction1 / (np.sqrt(v / bias_correction2) + eps)
        values[i] -= rate * (change + weight_decay * values[i])


def nadam(
    values: Array, mu: Array, nu: Array, gradients: Sources, coefficients: Coefficients
) -> None:
    (
        scale,
        rate,
        b1,
        one_minus_b1,
        bias_correction1,
        next_bias_correction1,
        b2,
        one_minus_b2,
        bias_correction2,
        eps,
    ) = coefficients
    for i in range(values.size):
        g = _total(gradients, scale, i)
        m = one_minus_b1 * g + b1 * mu[i]
        v = one_minus_b2 * (g * g) + b2 * nu[i]
        mu[i] = m
        nu[i] = v
        ahead = b1 * (m / next_bias_correction1) + one_minus_b1 * (g / bias_correction1)
        values[i] -= rate * (ahead / (np.sqrt(v / bias_correction2) + eps))


def adamax(
    values: Array, mu: Array, nu: Array, gradients: Sources, coefficients: Coefficients
) -> None:
    scale, rate, b1, one_minus_b1, bias_correction1, b2, eps = coefficients
    for i in range(values.size):
        g = _total(gradients, scale, i)
        m = one_minus_b1 * g + b1 * mu[i]
        v = np.maximum(np.abs(g) + eps, b2 * nu[i])
        mu[i] = m
        nu[i] = v
        values[i] -= rate * (m / bias_correction1 / v)


def lion(
    values: Array, mu: Array, gradients: Sources, coefficients: Coefficients
) -> None:
    scale, rate, b1, one_minus_b1, b2, one_minus_b2, weight_decay = coefficients
    for i in range(values.size):
        g = _total(gradients, scale, i)
        m = mu[i]
        mu[i] = one_minus_b2 * g + b2 * m
        change = np.sign(one_minus_b1 * g + b1 * m)
        values[i] -= rate * (change + weight_decay * values[i])


def lamb_direction(
    direction: Array,
    values: Array,
    mu: Array,
    nu: Array,
    gradients: Sources,
    coefficients: Coefficients,
) -> None:
    (
        scale,
        b1,
        one_minus_b1,
        bias_correction1,
        b2,
        one_minus_b2,
        bias_correction2,
        eps,
        weight_decay,
    ) = coefficients
    for i in range(values.size):
        g = _total(gradients, scale, i)
        m = one_minus_b1 * g + b1 * mu[i]
        v = one_minus_b2 * (g * g) + b2 * nu[i]
        mu[i] = m
        nu[i] = v
        change = m / bias_correction1 / (np.sqrt(v / bias_correction2) + eps)
        direction[i] = change + weight_decay * values[i]


def lars_direction(
    direction: Array, values: Array, gradients: Sources, coefficients: Coefficients
) -> None:
    scale, weight_decay = coefficients
    for i in range(values.size):
        direction[i] = _total(gradients, scale, i) + weight_decay * values[i]


def lars(
    values: Array, trace: Array, gradients: Sources, coefficients: Coefficients
) -> None:
    """The second phase: `gradients` has the update direction, `scale` is its trust
    ratio."""
    scale, rate, decay = coefficients
    for i in range(values.size):
        t = decay * trace[i] - rate * _total(gradients, scale, i)
        trace[i] = t
        values[i] += t
