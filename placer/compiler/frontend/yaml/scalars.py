"""Resolves plain scalars by the core schema of YAML 1.2, with bounds on numbers.

Unlike in YAML 1.1, `1e-3` is a number, and `on`, `off`, `yes` and `no` are strings.
"""

from __future__ import annotations

import math
import re

_INT = re.compile(r"[-+]?[0-9]+\Z|0x[0-9a-fA-F]+\Z|0o[0-7]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")
_WORDS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_NUMERIC = frozenset("0123456789+-.")


def resolve(text: str) -> str | int | float | bool | None:
    """Return the value of a plain scalar: a string, int, float, bool or None. Raises
    ValueError if a number is not finite or does not fit in 64 bits."""
    if text[:1] not in _NUMERIC:
        return _WORDS.get(text, text)
    if _INT.match(text):
        if len(text) > 66:
            raise ValueError("does not fit in 64 bits")
        number = int(text, 0) if text[:2] in ("0x", "0o") else int(text)
        if not -(2**63) <= number < 2**64:
            raise ValueError("does not fit in 64 bits")
        return number
    if _FLOAT.match(text):
        real = float(text)
        if not math.isfinite(real):
            raise ValueError("is not a finite number")
        return real
    if _NOT_FINITE.match(text):
        raise ValueError("is not a finite number")
    return text
