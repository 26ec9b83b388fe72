"""The equation of einsum: letters for the dimensions of its operands and its result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from placer.errors import OpError

_SHAPE = re.compile(r"[A-Za-z]*(,[A-Za-z]*)*->[A-Za-z]*\Z")


@dataclass(frozen=True)
class Equation:
    """`bqd,bkd->bqk`: one term for each operand, and the result."""

    terms: tuple[str, ...]
    result: str

    @cached_property
    def summed(self) -> tuple[str, ...]:
        """The terms without the letters that nothing else has: those are summed over
        before any product is made."""
        return tuple(
            "".join(
                letter
                for letter in term
                if letter in self.result or self._elsewhere(letter, i)
            )
            for i, term in enumerate(self.terms)
        )

    def _elsewhere(self, letter: str, index: int) -> bool:
        return any(letter in t for i, t in enumerate(self.terms) if i != index)

    @cached_property
    def products(self) -> tuple[str, ...]:
        """What the operands from the first to each of them make, left to right: the
        first term as it is summed, products, the result."""
        made = [self.summed[0]]
        for i, term in enumerate(self.summed[1:], start=1):
            later = "".join(self.summed[i + 1 :]) + self.result
            letters = dict.fromkeys(made[-1] + term)
            made.append("".join(letter for letter in letters if letter in later))
        return (*made[:-1], self.result) if len(made) > 1 else tuple(made)


def read(text: str) -> Equation:
    """The equation that a spec writes; OpError says what is wrong with it."""
    equation = text.replace(" ", "")
    if not _SHAPE.match(equation):
        hint = "write as many letters" if "." in equation else "write ij,jk->ik"
        raise _error(f"cannot read the equation '{text}'", hint)
    left, result = equation.split("->")
    terms = tuple(left.split(","))
    for term in (*terms, result):
        for letter in term:
            if term.count(letter) > 1:
                raise _error(
                    f"names {letter} twice in '{term}'", "it takes no diagonal"
                )
    for letter in result:
        if letter not in left:
            raise _error(f"has {letter} in its result and in no operand")
    return Equation(terms, result)


def _error(message: str, hint: str | None = None) -> OpError:
    return OpError(f"einsum {message}", attr="equation", hint=hint)
