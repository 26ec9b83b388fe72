"""einsum: products of any number of operands, summed over some dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

from placer.errors import OpError
from placer.ops.declaration import Attrs, BatchRule, Declaration, case, required
from placer.ops.linear.equation import Equation, is_equation, parse_equation
from placer.ops.operand import Operand, Types
from placer.place.types import Dim, TensorType

_error = partial(OpError, attr="equation")


def _check_equation(text: str) -> Equation:
    """Parse an equation; raise OpError if it is not one."""
    if not is_equation(text):
        hint = "write a form such as ij,jk->ik" if "." in text else "write ij,jk->ik"
        raise _error(f"cannot parse the equation '{text}'", hint=hint)
    equation = parse_equation(text)
    for term in (*equation.terms, equation.result):
        for letter in term:
            if term.count(letter) > 1:
                message = f"repeats {letter} in '{term}'"
                raise _error(
                    message,
                    hint="diagonals are not supported; use each letter once per term",
                )
    for letter in equation.result:
        if letter not in "".join(equation.terms):
            raise _error(f"has {letter} in its result, but in no operand")
    return equation


def _sizes(types: Types, equation: Equation) -> dict[str, Dim]:
    """Return the size of each letter; raise OpError if operands disagree."""
    sizes: dict[str, Dim] = {}
    for index, (type_, term) in enumerate(zip(types, equation.terms, strict=True)):
        if type_.rank != len(term):
            raise OpError(
                f"has the term '{term}' for 'xs[{index}]' {type_}", operand=index
            )
        for letter, dim in zip(term, type_.shape, strict=True):
            if sizes.setdefault(letter, dim) != dim:
                raise OpError(
                    f"has {letter} = {sizes[letter]}, but {dim} in 'xs[{index}]'"
                    f" {type_}",
                    operand=index,
                )
    return sizes


def _shape(letters: str, sizes: Mapping[str, Dim]) -> tuple[Dim, ...]:
    return tuple(sizes[letter] for letter in letters)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    equation = _check_equation(attrs["equation"])
    if len(equation.terms) != len(types):
        raise OpError(
            f"has {len(equation.terms)} terms in '{attrs['equation']}' for"
            f" {len(types)} operands",
            attr="equation",
        )
    sizes = _sizes(types, equation)
    return (TensorType(types[0].dtype, _shape(equation.result, sizes)),)


def _rows(types: Types, attrs: Attrs) -> BatchRule:
    """Return the batch rule: `rows` if the batch is the first letter of each term."""
    equation = parse_equation(attrs["equation"])
    row_letters = {
        term[0] for term, t in zip(equation.terms, types, strict=True) if t.has_rows
    }
    (rows, *others) = sorted(row_letters)
    if others or any(rows in term[1:] for term in (*equation.terms, equation.result)):
        return "whole"
    return "rows" if rows in equation.result else "reduce"


def _saves(types: Types, attrs: Attrs) -> tuple[int, ...]:
    equation = parse_equation(attrs["equation"])
    if len(types) == 1:
        return ()
    pairs = zip(equation.terms, equation.reduced_terms, strict=True)
    return tuple(i for i, (term, reduced) in enumerate(pairs) if term == reduced)


def _residuals(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """Return the types of the reduced operands and of the partial products."""
    equation = parse_equation(attrs["equation"])
    if len(types) == 1:
        return ()
    sizes = _sizes(types, equation)
    pairs = zip(equation.terms, equation.reduced_terms, strict=True)
    terms = [reduced for term, reduced in pairs if term != reduced]
    terms += equation.partial_terms[1:-1]
    return tuple(TensorType(types[0].dtype, _shape(term, sizes)) for term in terms)


def _product_flops(a: str, b: str, out: str, sizes: Mapping[str, Dim]) -> int:
    """Count one multiplication per term, and one addition if `out` omits letters."""
    letters = {*a, *b}
    per_product = 2 if letters - {*out} else 1
    return per_product * prod(int(sizes[letter]) for letter in letters)


def _flops(types: Types, attrs: Attrs) -> int:
    equation = parse_equation(attrs["equation"])
    sizes = _sizes(types, equation)
    pairs = zip(types, equation.terms, equation.reduced_terms, strict=True)
    sums = sum(x.numel() for x, term, reduced in pairs if term != reduced)
    return sums + sum(_product_flops(*terms, sizes) for terms in equation.products)


def _grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    equation = parse_equation(attrs["equation"])
    sizes, total = _sizes(types, equation), 0
    for i, (left, right, out) in enumerate(equation.products, start=1):
        total += _product_flops(out, left, right, sizes) * (i in wrt)
        total += _product_flops(out, right, left, sizes) * any(j < i for j in wrt)
    return total


EINSUM = Declaration(
    "einsum",
    "The Einstein summation: multiplies the operands and sums over the letters"
    " that the result omits. More than two operands are multiplied from left to"
    " right. The letter of the batch decides the batch rule: `rows` if it is the"
    " result's first letter, `reduce` if the result omits it, `whole` if operands"
    " have different letters for their rows.",
    (
        Operand(
            "xs", "float, all of one dtype", variadic=True, dtype="float", same="dtype"
        ),
    ),
    _infer,
    _rows,
    _flops,
    _grad_flops,
    attrs=(
        required(
            "equation",
            str,
            "the letters of each operand, separated by commas, then `->` and the"
            " letters of the result; each term has a letter at most once",
        ),
    ),
    linear=lambda types, attrs: tuple((i,) for i in range(len(types))),
    saves=_saves,
    residuals=_residuals,
    formula="ij,jk->ik: out[i, k] = Σ_j xs[0][i, j] · xs[1][j, k]",
    source="numpy.einsum; the equation must have `->` and cannot have `...`",
    cases=(
        case(
            "float32[batch, 20, 4, 16], float32[batch, 20, 4, 16]",
            equation="bqhd,bkhd->bhqk",
        ),
        case("float32[batch, 8], float32[batch, 4]", equation="bi,bj->ij"),
        case(
            "float32[batch, 8], float32[8, 9, 4], float32[batch, 9]",
            equation="bi,ijo,bj->bo",
        ),
        case("float32[batch, 8], float32[batch, 8]", equation="bi,ci->bc"),
    ),
)
