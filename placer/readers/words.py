"""Words of a vocabulary for Python values.

`prepare.py` of an exported model has a copy of this function.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from placer.readers.scalars import is_absent, scalar_of


def word_of(value: Any, words: Collection[str]) -> str:
    """Return the word that a value stands for: its text, without surrounding blanks.

    None, NaN, NaT and NA become the empty word. A boolean becomes `true` or `false`. A
    float without a fraction becomes the text of the whole number. A text in `words`,
    such as `True` or `1.0`, is kept. Bytes are UTF-8.

    Raises ValueError for other bytes, and for a list, an array or a mapping.
    """
    value = scalar_of(value)
    if isinstance(value, list | tuple | dict) or getattr(value, "ndim", None):
        raise ValueError(f"{type(value).__name__} is not one word")
    if is_absent(value):
        return ""
    text = value.decode() if isinstance(value, bytes) else str(value)
    text = text.strip()
    if text not in words and isinstance(value, bool | np.bool_):
        text = text.lower()
    if text not in words and isinstance(value, float | np.floating):
        text = text.removesuffix(".0")
    return text
