"""Hints for a Python of another machine that cannot import placer."""

from __future__ import annotations

import re
from typing import Final

from placer.system.distribution import REINSTALL

REMOVE_OTHER: Final = (
    "this Python has another program with a package `placer`, probably from a public"
    f" index; run in its environment: pip uninstall placer; then {REINSTALL}"
)
"""The hint if the package `placer` of a Python belongs to another program."""


def has_other_program(said: str) -> bool:
    """Return True if a Python found a package `placer` without placer's modules.

    Args:
        said: the output of that Python.
    """
    return bool(re.search(r"No module named '?placer\.(command|launcher)\b", said))


def hint_without_placer(said: str, otherwise: str) -> str | None:
    """Return a hint if a Python could not import placer, else None.

    Args:
        said: the output of that Python.
        otherwise: the hint if it has no package `placer`.
    """
    if has_other_program(said):
        return REMOVE_OTHER
    return otherwise if re.search(r"No module named '?placer\b", said) else None
