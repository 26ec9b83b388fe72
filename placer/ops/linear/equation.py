"""Parses einsum equations: one letter for each dimension."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final


@dataclass(frozen=True)
class Equation:
    """An equation such as `bqd,bkd->bqk`: a term for each operand, and the result."""

    terms: tuple[str, ...]
    result: str

    @cached_property
    def reduced_terms(self) -> tuple[str, ...]:
        """The terms without letters that only one operand has and the result omits.

        The operands are summed over those letters before they are multiplied.
        """
        return tuple(
            "".join(
                letter
                for letter in term
                if letter in self.result or self._in_another_term(letter, i)
            )
            for i, term in enumerate(self.terms)
        )

    def _in_another_term(self, letter: str, index: int) -> bool:
        return any(letter in t for i, t in enumerate(self.terms) if i != index)

    @cached_property
    def partial_terms(self) -> tuple[str, ...]:
        """The terms of the partial products, from left to right.

        The first is the first of `reduced_terms`, the last is the result.
        """
        terms = [self.reduced_terms[0]]
        for i, term in enumerate(self.reduced_terms[1:], start=1):
            later = "".join(self.reduced_terms[i + 1 :]) + self.result
            letters = dict.fromkeys(terms[-1] + term)
            terms.append("".join(letter for letter in letters if letter in later))
        return (*terms[:-1], self.result) if len(terms) > 1 else tuple(terms)

    @cached_property
    def products(self) -> tuple[tuple[str, str, str], ...]:
        """For each product: the subscripts of its left operand, right operand and result."""
        terms = self.partial_terms
        return tuple(zip(terms[:-1], self.reduced_terms[1:], terms[1:], strict=True))


_SHAPE: Final = re.compile(r"[A-Za-z]*(,[A-Za-z]*)*->[A-Za-z]*\Z")


def is_equation(text: str) -> bool:
    """Return True if the text has the form of an equation."""
    return _SHAPE.match(text.replace(" ", "")) is not None


def parse_equation(text: str) -> Equation:
    """Parse a valid equation."""
    left, result = text.replace(" ", "").split("->")
    return Equation(tuple(left.split(",")), result)


def checked_equation(text: str, operands: int) -> Equation:
    """Parse an equation for the given number of operands.

    Raises ValueError if the text is not an equation, or has a repeated letter in a
    term. The compiler checks the equations of specs in `product.py`.
    """
    if not is_equation(text):
        raise ValueError(
            f"cannot parse the equation '{text}': expected a form such as ij,jk->ik"
        )
    equation = parse_equation(text)
    if len(equation.terms) != operands:
        raise ValueError(
            f"'{text}' has {len(equation.terms)} terms, but got {operands} operands"
        )
    for term in (*equation.terms, equation.result):
        if len({*term}) < len(term):
            raise ValueError(f"'{text}' repeats a letter in '{term}'")
    if not {*equation.result} <= {*"".join(equation.terms)}:
        raise ValueError(f"the result of '{text}' has a letter that is in no operand")
    return equation
