"""The equation of einsum: a letter for each dimension of operands and result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final


@dataclass(frozen=True)
class Equation:
    """An equation such as `bqd,bkd->bqk`: one term for each operand, and the result."""

    terms: tuple[str, ...]
    result: str

    @cached_property
    def reduced_terms(self) -> tuple[str, ...]:
        """The terms without letters that occur in no other term and not in the result.

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
        """The terms of the products of the first 1, 2, … operands, from left to right.

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
        """The terms of left, right and result of each product, from left to right."""
        terms = self.partial_terms
        return tuple(zip(terms[:-1], self.reduced_terms[1:], terms[1:], strict=True))


_SHAPE: Final = re.compile(r"[A-Za-z]*(,[A-Za-z]*)*->[A-Za-z]*\Z")


def is_equation(text: str) -> bool:
    """Whether a text has the form of an equation."""
    return _SHAPE.match(text.replace(" ", "")) is not None


def parse_equation(text: str) -> Equation:
    """Parse a text that is an equation."""
    left, result = text.replace(" ", "").split("->")
    return Equation(tuple(left.split(",")), result)


def checked_equation(text: str, operands: int) -> Equation:
    """Parse the equation of so many operands. Raises ValueError if it is not one, or has a
    diagonal; `product.py` refuses these in specs."""
    if not is_equation(text):
        raise ValueError(f"cannot read the equation '{text}': write ij,jk->ik")
    equation = parse_equation(text)
    if len(equation.terms) != operands:
        raise ValueError(f"'{text}' has {len(equation.terms)} terms, not {operands}")
    for term in (*equation.terms, equation.result):
        if len({*term}) < len(term):
            raise ValueError(f"'{text}' names a letter twice in '{term}'")
    if not {*equation.result} <= {*"".join(equation.terms)}:
        raise ValueError(f"the result of '{text}' has a letter that no operand has")
    return equation
