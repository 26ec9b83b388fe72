"""einsum."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from placer.ops.linear.equation import Equation, read

Arrays = tuple[jax.Array, ...]


def einsum(*xs: jax.Array, equation: str) -> jax.Array:
    letters = read(equation)
    if len(xs) == 1:
        return jnp.einsum(f"{letters.terms[0]}->{letters.result}", *xs)
    # Sums come first and outside: JAX keeps nothing for them
    return _product(letters, *map(_summed, xs, letters.terms, letters.summed))


def _summed(x: jax.Array, term: str, kept: str) -> jax.Array:
    gone = tuple(axis for axis, letter in enumerate(term) if letter not in kept)
    return jnp.sum(x, axis=gone) if gone else x


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(letters: Equation, *xs: jax.Array) -> jax.Array:
    return _products(letters, xs)[-1]


def _products(letters: Equation, xs: Arrays) -> list[jax.Array]:
    """What each operand makes with all before it."""
    made, products = letters.products, [xs[0]]
    for i, (x, term) in enumerate(zip(xs[1:], letters.summed[1:], strict=True)):
        products.append(_pair(made[i], term, made[i + 1], products[i], x))
    return products[1:]


def _pair(left: str, right: str, out: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(f"{left},{right}->{out}", a, b)


def _product_forward(
    letters: Equation, *xs: jax.Array
) -> tuple[jax.Array, tuple[Arrays, Arrays]]:
    *between, out = _products(letters, xs)
    return out, (xs, tuple(between))


def _product_backward(
    letters: Equation, kept: tuple[Arrays, Arrays], dy: jax.Array
) -> Arrays:
    xs, between = kept
    lefts, made, terms = (xs[0], *between), letters.products, letters.summed
    cotangents: list[jax.Array] = []
    for i in range(len(xs) - 1, 0, -1):
        cotangents.append(_pair(made[i], made[i - 1], terms[i], dy, lefts[i - 1]))
        dy = _pair(made[i], terms[i], made[i - 1], dy, xs[i])
    return (dy, *reversed(cotangents))


_product.defvjp(_product_forward, _product_backward)
