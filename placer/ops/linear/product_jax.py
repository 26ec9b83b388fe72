"""einsum, multiplied from left to right as its declaration says."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from placer.ops.common.gradient_jax import differentiable
from placer.ops.linear.equation import Equation, parse_equation

Arrays = tuple[jax.Array, ...]


def einsum(*xs: jax.Array, equation: str) -> jax.Array:
    parsed = parse_equation(equation)
    if len(xs) == 1:
        return jnp.einsum(f"{parsed.terms[0]}->{parsed.result}", *xs)
    # Sum first, outside of the custom VJP: the gradient of a sum needs no residuals
    return _product(parsed, *map(_sum_out, xs, parsed.terms, parsed.reduced_terms))


def _sum_out(x: jax.Array, term: str, reduced: str) -> jax.Array:
    axes = tuple(axis for axis, letter in enumerate(term) if letter not in reduced)
    return jnp.sum(x, axis=axes) if axes else x


def _products(equation: Equation, xs: Arrays) -> list[jax.Array]:
    """Return the products of the first 2, 3, … operands."""
    terms, products = equation.partial_terms, [xs[0]]
    for i, (x, term) in enumerate(zip(xs[1:], equation.reduced_terms[1:], strict=True)):
        products.append(_multiply(terms[i], term, terms[i + 1], products[i], x))
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
    # From right to left, for p[i] = p[i - 1] · x[i]: dx[i] = dp[i] · p[i - 1] and
    # dp[i - 1] = dp[i] · x[i], each summed over the letters that its result omits.
    xs, between = saved
    lefts = (xs[0], *between)
    partial_terms, terms = equation.partial_terms, equation.reduced_terms
    cotangents: list[jax.Array] = []
    for i in range(len(xs) - 1, 0, -1):
        left, out = partial_terms[i - 1], partial_terms[i]
        cotangents.append(_multiply(out, left, terms[i], dy, lefts[i - 1]))
        dy = _multiply(out, terms[i], left, dy, xs[i])
    return (dy, *reversed(cotangents))


_product = differentiable(_product_forward, _product_backward, static=1)
