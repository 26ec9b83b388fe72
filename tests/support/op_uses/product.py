"""einsum."""

from functools import reduce
from operator import mul

import jax.numpy as jnp

from support.op_use import Use


def plain_einsum(*xs, equation):
    """Broadcast operands to an axis for each letter, multiply them all, then sum."""
    left, result = equation.replace(" ", "").split("->")
    terms = left.split(",")
    letters = sorted({*left} - {","})
    spread = []
    for x, term in zip(xs, terms, strict=True):
        order = [term.index(letter) for letter in letters if letter in term]
        index = tuple(slice(None) if letter in term else None for letter in letters)
        spread.append(jnp.transpose(x, order)[index])
    summed = tuple(i for i, letter in enumerate(letters) if letter not in result)
    remaining = [letter for letter in letters if letter in result]
    total = jnp.sum(reduce(mul, spread), axis=summed)
    return jnp.transpose(total, [remaining.index(letter) for letter in result])


def _einsum(equation: str, *operands: str) -> Use:
    return Use("einsum", operands, {"equation": equation})


DIFFERENTIABLE = [
    _einsum("bi,ij->bj", "float32[batch, 4]", "float32[4, 3]"),
    _einsum("bqhd,bkhd->bhqk", "float32[batch, 2, 3, 4]", "float32[batch, 5, 3, 4]"),
    _einsum("bi,bi->b", "float32[batch, 4]", "float32[batch, 4]"),
    _einsum("bi,bi->bi", "float32[batch, 4]", "float32[batch, 4]"),
    _einsum("bi,bj->ij", "float32[batch, 4]", "float32[batch, 3]"),
    _einsum("bi,bi->", "float32[batch, 4]", "float32[batch, 4]"),
    _einsum("bi,ci->bc", "float32[batch, 4]", "float32[batch, 4]"),
    _einsum("ib,bj->ij", "float32[4, batch]", "float32[batch, 3]"),
    _einsum("bi,ij->jb", "float32[batch, 4]", "float32[4, 3]"),
    _einsum("bc,ci->bi", "float32[batch, batch]", "float32[batch, 4]"),
    _einsum("bc->c", "float32[batch, batch]"),
    _einsum("bij,k->bk", "float32[batch, 2, 3]", "float32[4]"),
    _einsum("bi,j->ij", "float32[batch, 2]", "float32[4]"),
    _einsum(",bi -> bi", "float32[]", "float32[batch, 4]"),
    _einsum("bij->bji", "float32[batch, 2, 3]"),
    _einsum("bij->j", "float32[batch, 2, 3]"),
    _einsum("ij->ji", "float32[2, 3]"),
    _einsum(
        "bi,ijo,bj->bo", "float32[batch, 4]", "float32[4, 3, 2]", "float32[batch, 3]"
    ),
    _einsum(
        "bi,bj,bk,ijkm->m",
        "float32[batch, 2]",
        "float32[batch, 3]",
        "float32[batch, 4]",
        "float32[2, 3, 4, 2]",
    ),
    _einsum("bx,i,j->bij", "float32[batch, 3]", "float32[2]", "float32[4]"),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {"einsum": plain_einsum}
