"""Hints for a Python of another machine that cannot import placer."""

from __future__ import annotations

import re
from typing import Final

from placer.system.distribution import REINSTALL

OTHER_PACKAGE: Final = r"No module named '?placer\.(command|launcher)\b"
"""Matches Python's error if its package `placer` belongs to another program."""
REMOVE_OTHER: Final = (
    "this Python has another program with a package `placer`, probably from a public"
    f" index; run in its environment: pip uninstall placer; then {REINSTALL}"
)
_MISSING: Final = r"No module named '?placer\b"


def hint_without_placer(said: str, otherwise: str) -> str | None:
    """Return a hint if a Python could not import placer, else None.

    Args:
        said: the output of that Python.
        otherwise: the hint if it has no package `placer`.
    """
    if re.search(OTHER_PACKAGE, said):
        return REMOVE_OTHER
    return otherwise if re.search(_MISSING, said) else None
