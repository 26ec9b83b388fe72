"""The cell values that mean a missing value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite

Marker = str | int | float
"""A text or a number that a spec lists in `missing_values`."""

MISSING_WORDS = (
    *("", "?", "-", "na", "n/a", "nan", "-nan", "nat", "null", "none", "<na>", "\\n"),
    *("#na", "#n/a", "#n/a n/a", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
)
"""Lowercase cells that mean a missing number or date: the defaults of pandas, `?`, `-`, and
`\\N` of databases."""

MISSING = frozenset(
    "".join(letters)
    for word in MISSING_WORDS
    for letters in product(*({letter, letter.upper()} for letter in word))
)
"""The missing words in every mix of upper and lower case."""

_LARGEST = 2**53
"""Below this bound, floats represent every whole number exactly."""


@dataclass(frozen=True, slots=True)
class Markers:
    """The `missing_values` of one column.

    Attributes:
        texts: the texts, compared exactly.
        numbers: the numbers, also if a cell writes them as text.
    """

    texts: frozenset[str] = frozenset()
    numbers: frozenset[int | float] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.texts)

    def marks_missing(self, text: str) -> bool:
        """Return True if a cell, stripped of blanks, means a missing value."""
        return text in self.texts or (
            bool(self.numbers) and _number_in(text) in self.numbers
        )


NO_MARKERS = Markers()


def make_markers(listed: Sequence[Marker]) -> Markers:
    """Return the markers of a spec's list. A number matches every way to write it."""
    texts = frozenset(str(each).strip() for each in listed)
    numbers = map(_number_in, texts)
    return Markers(texts, frozenset(each for each in numbers if each is not None))


def _number_in(text: str) -> float | None:
    """Return the number in a text if it is finite and below 2**53 in magnitude."""
    if "_" in text or not text.isascii():
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) and abs(number) < _LARGEST else None
