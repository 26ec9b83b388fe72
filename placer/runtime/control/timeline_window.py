"""Parses the range of steps that a timeline shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from placer.errors import PlacerError

FORM: Final = "FIRST:LAST"
DEFAULT_STEPS: Final = 100
"""The number of steps to trace by default, from the start of the run."""


@dataclass(frozen=True, slots=True)
class Window:
    """The steps from `first` to `last`, inclusive."""

    first: int
    last: int

    def __contains__(self, step: int) -> bool:
        return self.first <= step <= self.last

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


def parse_window(text: str) -> Window:
    """Parse a window such as `10:30`; raise PlacerError if the text is not valid."""
    match = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", str(text))
    if match is None:
        raise PlacerError(
            f"'{text}' is not a range of steps",
            hint=f"write it as {FORM}, such as 10:30",
        )
    first, last = map(int, match.groups())
    if not 1 <= first <= last:
        raise PlacerError(
            f"the range '{text}' contains no steps",
            hint="start at step 1 or later, and end at or after the first step",
        )
    return Window(first, last)
