"""einsum, multiplied from left to right."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..common.gradient_jax import differentiable
from .equation import Equation, checked_equation

Arrays = tuple[jax.Array, ...]


def einsum(*xs: jax.Array, equation: str) -> jax.Array:
    parsed = checked_equation(equation, len(xs))
    if len(xs) == 1:
        return jnp.einsum(f"{parsed.terms[0]}->{parsed.result}", *xs)
    # Sum outside of the custom VJP: the gradient of a sum needs no residuals
    return _product(parsed, *map(_sum_out, xs, parsed.terms, parsed.reduced_terms))


def _sum_out(x: jax.Array, term: str, reduced: str) -> jax.Array:
    axes = tuple(axis for axis, letter in enumerate(term) if letter not in reduced)
    return jnp.sum(x, axis=axes) if axes else x


def _products(equation: Equation, xs: Arrays) -> list[jax.Array]:
    products = [xs[0]]
    for x, terms in zip(xs[1:], equation.products, strict=True):
        products.append(_multiply(*terms, products[-1], x))
    return products[1:]


def _multiply(left: str, right: str, out: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(f"{left},{right}->{out}", a, b)


def _product_forward(
    equation: Equation, *xs: jax.Array
) -> tuple[jax.Array, tuple[Arrays, Arrays]]:
    *between, out = _products(equation, xs)
    return out, (xs, tuple(between))


def _product_backward(
    equation: Equation, saved: tuple[Arrays, Arrays], dy: jax.Array
) -> Arrays:
    # Backward, from right to left. For p[i] = p[i - 1] · x[i]: dx[i] = dp[i] · p[i - 1]
    # and dp[i - 1] = dp[i] · x[i], each summed over the letters that its result omits.
    (x, *xs), between = saved
    factors = zip(equation.products, (x, *between), xs, strict=True)
    cotangents: list[jax.Array] = []
    for (left, right, out), a, b in reversed([*factors]):
        cotangents.append(_multiply(out, left, right, dy, a))
        dy = _multiply(out, right, left, dy, b)
    return (dy, *reversed(cotangents))


_product = differentiable(_product_forward, _product_backward, static=1)
