"""The equation of einsum: a letter for each dimension of operands and result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


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


def parse_equation(text: str) -> Equation:
    """Parse an equation that `product.py` has checked."""
    left, result = text.replace(" ", "").split("->")
    return Equation(tuple(left.split(",")), result)
