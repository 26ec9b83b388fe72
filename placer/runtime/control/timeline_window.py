"""The steps of a run that a timeline shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from placer.errors import PlacerError

FORM: Final = "FIRST:LAST"
DEFAULT_STEPS: Final = 100
"""How many steps are shown by default: the first ones of the run."""


@dataclass(frozen=True, slots=True)
class Window:
    """The steps from `first` to `last`, both of them included."""

    first: int
    last: int

    def __contains__(self, step: int) -> bool:
        return self.first <= step <= self.last

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


def parse_window(text: str) -> Window:
    """Return the window of a text such as `10:30`; PlacerError for any other text."""
    match = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", str(text))
    if match is None:
        raise PlacerError(
            f"'{text}' is no range of steps", hint=f"write it as {FORM}, such as 10:30"
        )
    first, last = map(int, match.groups())
    if not 1 <= first <= last:
        raise PlacerError(
            f"'{text}' has no steps", hint="steps are numbered from 1, in rising order"
        )
    return Window(first, last)
