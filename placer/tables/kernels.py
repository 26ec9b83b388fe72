"""The loops of the optimizer rules: one pass each over flat arrays, in place.

numba compiles them (`kernels_compiled.py`) for float32 or float64. Beside the arrays
that a rule changes each takes `gradients`, a tuple with one array a source, and
`numbers`, a tuple that `rules.py` makes. Arrays and numbers are of one dtype and no
literal meets them, so all is computed in it; and every operation is rounded as written.
So a slice of an update is the update of the slice, bit for bit.

`scale` multiplies the sum of the gradients; `left1` is 1 - b1; `count1` is 1 - b1**step,
the correction of a moment that began at zero. Where optax multiplies by a reciprocal
root, these divide by the root.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

Array = npt.NDArray[Any]
Sources = tuple[Array, ...]
Numbers = tuple[Any, ...]


@register_jitable
def _total(gradients: Sources, scale: Any, i: int) -> Any:
    """Element i of the gradients, summed from left to right, times the scale."""
    total = gradients[0][i]
    for source in range(1, len(gradients)):
        total += gradients[source][i]
    return scale * total


def sgd(values: Array, gradients: Sources, numbers: Numbers) -> None:
    scale, rate = numbers
    for i in range(values.size):
        values[i] -= rate * _total(gradients, scale, i)


def momentum(values: Array, trace: Array, gradients: Sources, numbers: Numbers) -> None:
    scale, rate, decay = numbers
    for i in range(values.size):
        t = _total(gradients, scale, i) + decay * trace[i]
        trace[i] = t
        values[i] -= rate * t


def nesterov(values: Array, trace: Array, gradients: Sources, numbers: Numbers) -> None:
    scale, rate, decay = numbers
    for i in range(values.size):
        g = _total(gradients, scale, i)
        t = g + decay * trace[i]
        trace[i] = t
        values[i] -= rate * (g + decay * t)


def adagrad(
    values: Array, sum_of_squares: Array, gradients: Sources, numbers: Numbers
) -> None:
    scale, rate, eps, zero = numbers
    for i in range(values.size):
        g = _total(gradients, scale, i)
        s = g * g + sum_of_squares[i]
        sum_of_squares[i] = s
        values[i] -= rate * (g / np.sqrt(s + eps) if s > zero else zero * g)


def rmsprop(values: Array, nu: Array, gradients: Sources, numbers: Numbers) -> None:
    scale, rate, decay, left, eps = numbers
    for i in range(values.size):
        g = _total(gradients, scale, i)
        v = left * (g * g) + decay * nu[i]
        nu[i] = v
        values[i] -= rate * (g / np.sqrt(v + eps))


def rmsprop_trace(
    values: Array, nu: Array, trace: Array, gradients: Sources, numbers: Numbers
) -> None:
    scale, rate, decay, left, eps, momentum = numbers
    for i in range(values.size):
        g = _total(gradients, scale, i)
        v = left * (g * g) + decay * nu[i]
        nu[i] = v
        t = momentum * trace[i] - rate * (g / np.sqrt(v + eps))
        trace[i] = t
        values[i] += t


def rmsprop_centered(
    values: Array, nu: Array, mu: Array, gradients: Sources, numbers: Numbers
) -> None:
    scale, rate, decay, left, eps = numbers
    for i in range(values.size):
        g = _total(gradients, scale, i)
        v = left * (g * g) + decay * nu[i]
        m = left * g + decay * mu[i]
        nu[i] = v
        mu[i] = m
        values[i] -= rate * (g / np.sqrt(v - m * m + eps))


def rmsprop_centered_trace(
    values: Array,
    nu: Array,
    mu: Array,
    trace: Array,
    gradients: Sources,
    numbers: Numbers,
) -> None:
    scale, rate, decay, left, eps, momentum = numbers
    for i in range(values.size):
        g = _total(gradients, scale, i)
        v = left * (g * g) + decay * nu[i]
        m = left * g + decay * mu[i]
        nu[i] = v
        mu[i] = m
        t = momentum * trace[i] - rate * (g / np.sqrt(v - m * m + eps))
        trace[i] = t
        values[i] += t


def adadelta(
    values: Array, e_g: Array, e_x: Array, gradients: Sources, numbers: Numbers
) -> None:
    scale, rate, rho, left, eps = numbers
    for i in range(values.size):
        g = _total(gradients, scale, i)
        s = left * (g * g) + rho * e_g[i]
        x = np.sqrt(e_x[i] + eps) / np.sqrt(s + eps) * g
        e_g[i] = s
        e_x[i] = left * (x * x) + rho * e_x[i]
        values[i] -= rate * x


def adam(
    values: Array, mu: Array, nu: Array, gradients: Sources, numbers: Numbers
) -> None:
    """adamw too: without weight decay the last term adds zero."""
    scale, rate, b1, left1, count1, b2, left2, count2, eps, weight_decay = numbers
    for i in range(values.size):
        g = _total(gradients, scale, i)
        m = left1 * g + b1 * mu[i]
        v = left2 * (g * g) + b2 * nu[i]
        mu[i] = m
        nu[i] = v
        change = m / count1 / (np.sqrt(v / count2) + eps)
        values[i] -= rate * (change + weight_decay * values[i])


def nadam(
    values: Array, mu: Array, nu: Array, gradients: Sources, numbers: Numbers
) -> None:
    scale, rate, b1, left1, count1, next1, b2, left2, count2, eps = numbers
    for i in range(values.size):
        g = _total(gradients, scale, i)
        m = left1 * g + b1 * mu[i]
        v = left2 * (g * g) + b2 * nu[i]
        mu[i] = m
        nu[i] = v
        ahead = b1 * (m / next1) + left1 * (g / count1)
        values[i] -= rate * (ahead / (np.sqrt(v / count2) + eps))


def adamax(
    values: Array, mu: Array, nu: Array, gradients: Sources, numbers: Numbers
) -> None:
    scale, rate, b1, left1, count1, b2, eps = numbers
    for i in range(values.size):
        g = _total(gradients, scale, i)
        m = left1 * g + b1 * mu[i]
        v = np.maximum(np.abs(g) + eps, b2 * nu[i])
        mu[i] = m
        nu[i] = v
        values[i] -= rate * (m / count1 / v)


def lion(values: Array, mu: Array, gradients: Sources, numbers: Numbers) -> None:
    scale, rate, b1, left1, b2, left2, weight_decay = numbers
    for i in range(values.size):
        g = _total(gradients, scale, i)
        m = mu[i]
        mu[i] = left2 * g + b2 * m
        change = np.sign(left1 * g + b1 * m)
        values[i] -= rate * (change + weight_decay * values[i])


def lamb_direction(
    direction: Array,
    values: Array,
    mu: Array,
    nu: Array,
    gradients: Sources,
    numbers: Numbers,
) -> None:
    scale, b1, left1, count1, b2, left2, count2, eps, weight_decay = numbers
    for i in range(values.size):
        g = _total(gradients, scale, i)
        m = left1 * g + b1 * mu[i]
        v = left2 * (g * g) + b2 * nu[i]
        mu[i] = m
        nu[i] = v
        change = m / count1 / (np.sqrt(v / count2) + eps)
        direction[i] = change + weight_decay * values[i]


def lars_direction(
    direction: Array, values: Array, gradients: Sources, numbers: Numbers
) -> None:
    scale, weight_decay = numbers
    for i in range(values.size):
        direction[i] = _total(gradients, scale, i) + weight_decay * values[i]


def lars(values: Array, trace: Array, gradients: Sources, numbers: Numbers) -> None:
    """The direction stands for the gradient, and the ratio for its scale."""
    scale, rate, decay = numbers
    for i in range(values.size):
        t = decay * trace[i] - rate * _total(gradients, scale, i)
        trace[i] = t
        values[i] += t
