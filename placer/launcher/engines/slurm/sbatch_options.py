"""Finds the options that a text of `#SBATCH` options sets."""

from __future__ import annotations

import re
import shlex
from typing import Final

from placer.errors import PlacerError

_LETTERS: Final = {
    "A": "account",
    "M": "clusters",
    "p": "partition",
    "q": "qos",
    "t": "time",
}
_NAMES: Final = (*_LETTERS.values(), "reservation")
"""The options for which the environment may have a default."""
_SHORT: Final = re.compile(r"-[hHIkOQsuvVWX]*([A-Za-z])")
"""An option letter, possibly after letters of options without a value."""


def set_options(text: str) -> set[str]:
    """Return the sbatch options in `text` that can also have a default in the
    environment.

    A value of another option that begins with a dash counts as an option. Raises
    PlacerError for an unclosed quotation mark.

    >>> sorted(set_options("-p debug --qo=high --time-min 5"))
    ['partition', 'qos']
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PlacerError(
            f"slurm: 'sbatch' is not a list of options: {str(error).lower()}: {text}"
        ) from None
    found = set()
    for word in words:
        if word.startswith("--"):
            # sbatch accepts abbreviated names of options.
            given = word[2:].partition("=")[0]
            found |= {name for name in _NAMES if given and name.startswith(given)}
        elif (match := _SHORT.match(word)) and match[1] in _LETTERS:
            found.add(_LETTERS[match[1]])
    return found
