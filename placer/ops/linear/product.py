"""einsum: products of any number of operands, summed over the letters left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from placer.errors import OpError
from placer.ops.common.checks import arity, need_float, need_same_dtype
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    Operand,
    Rule,
    Types,
)
from placer.ops.linear.equation import Equation, read
from placer.types import Dim, TensorType

_OPERANDS = (Operand("xs", "float of one dtype", variadic=True),)


def _sizes(types: Types, equation: Equation) -> dict[str, Dim]:
    """The dimension of each letter; OpError where operands differ in it."""
    sizes: dict[str, Dim] = {}
    for index, (type_, term) in enumerate(zip(types, equation.terms, strict=True)):
        if type_.rank != len(term):
            raise OpError(
                f"einsum has '{term}' for 'xs[{index}]' {type_}", operand=index
            )
        for letter, dim in zip(term, type_.shape, strict=True):
            if sizes.setdefault(letter, dim) != dim:
                raise OpError(
                    f"einsum has {letter} = {sizes[letter]}, and {dim} in 'xs[{index}]'"
                    f" {type_}",
                    operand=index,
                )
    return sizes


def _shape(letters: str, sizes: Mapping[str, Dim]) -> tuple[Dim, ...]:
    return tuple(sizes[letter] for letter in letters)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("einsum", _OPERANDS, types)
    names = [f"xs[{i}]" for i in range(len(types))]
    for index, name in enumerate(names):
        need_float("einsum", name, types, index)
    need_same_dtype("einsum", names, types)
    equation = read(attrs["equation"])
    if len(equation.terms) != len(types):
        raise OpError(
            f"einsum has {len(equation.terms)} terms in '{attrs['equation']}' and"
            f" {len(types)} operands",
            attr="equation",
        )
    sizes = _sizes(types, equation)
    return (TensorType(types[0].dtype, _shape(equation.result, sizes)),)


def _rows(types: Types, attrs: Attrs) -> Rule:
    """By the letter of the rows: it must lead every operand that has it."""
    equation = read(attrs["equation"])
    leading = {
        term[0] for term, t in zip(equation.terms, types, strict=True) if t.has_rows
    }
    (rows, *others) = sorted(leading)
    if others or any(rows in term[1:] for term in (*equation.terms, equation.result)):
        return "whole"
    return "rows" if rows in equation.result else "reduce"


def _saves(types: Types, attrs: Attrs) -> tuple[int, ...]:
    equation = read(attrs["equation"])
    if len(types) == 1:
        return ()
    pairs = zip(equation.terms, equation.summed, strict=True)
    return tuple(i for i, (term, summed) in enumerate(pairs) if term == summed)


def _residuals(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """The operands that were summed up first, and the products in between."""
    equation = read(attrs["equation"])
    if len(types) == 1:
        return ()
    sizes = _sizes(types, equation)
    pairs = zip(equation.terms, equation.summed, strict=True)
    kept = [summed for term, summed in pairs if term != summed]
    kept += equation.products[1:-1]
    return tuple(TensorType(types[0].dtype, _shape(term, sizes)) for term in kept)


def _product(a: str, b: str, out: str, sizes: Mapping[str, Dim]) -> int:
    """The operations of one product of two: two for each term of a sum."""
    letters = {*a, *b}
    each = 2 if letters - {*out} else 1
    return each * prod(int(sizes[letter]) for letter in letters)


def _flops(types: Types, attrs: Attrs) -> int:
    equation = read(attrs["equation"])
    sizes, made = _sizes(types, equation), equation.products
    pairs = zip(types, equation.terms, equation.summed, strict=True)
    total = sum(x.numel() for x, term, summed in pairs if term != summed)
    for i, term in enumerate(equation.summed[1:], start=1):
        total += _product(made[i - 1], term, made[i], sizes)
    return total


def _grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    equation = read(attrs["equation"])
    sizes, made = _sizes(types, equation), equation.products
    total = 0
    for i, term in enumerate(equation.summed[1:], start=1):
        total += _product(made[i], made[i - 1], term, sizes) * (i in wrt)
        total += _product(made[i], term, made[i - 1], sizes) * any(j < i for j in wrt)
    return total


EINSUM = Declaration(
    "einsum",
    "The product of its operands, by letters for their dimensions, summed over those"
    " that the result leaves out; of more than two operands, left to right. The letter"
    " of the batch makes the batch rule: rows where it leads the result, a sum where"
    " the result leaves it out, the whole where operands have their rows under"
    " different letters.",
    _OPERANDS,
    _infer,
    _rows,
    _flops,
    _grad_flops,
    attrs=(
        Attr(
            "equation",
            str,
            "letters for each operand, commas between, `->` and the result's letters;"
            " no letter twice in one of them",
            required=True,
        ),
    ),
    linear=lambda types, attrs: tuple((i,) for i in range(len(types))),
    saves=_saves,
    residuals=_residuals,
    formula="ij,jk->ik: out[i, k] = Σ_j xs[0][i, j] · xs[1][j, k]",
    source="numpy.einsum, written out: with `->` and without `...`",
    cases=(
        Case(
            ("float32[batch, 20, 4, 16]", "float32[batch, 20, 4, 16]"),
            {"equation": "bqhd,bkhd->bhqk"},
        ),
        Case(("float32[batch, 8]", "float32[batch, 4]"), {"equation": "bi,bj->ij"}),
        Case(
            ("float32[batch, 8]", "float32[8, 9, 4]", "float32[batch, 9]"),
            {"equation": "bi,ijo,bj->bo"},
        ),
        Case(("float32[batch, 8]",) * 2, {"equation": "bi,ci->bc"}),
    ),
    example='{name: scores, op: einsum, in: [query, keys], equation: "bqd,bkd->bqk"}',
)

DECLARATIONS = (EINSUM,)
