"""Which options of sbatch a text sets, as users write it after `#SBATCH`."""

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
"""The options for which users may have a default in the environment."""
_SHORT: Final = re.compile(r"-[hHIkOQsuvVWX]*([A-Za-z])")
"""A letter, after those of options without a value."""


def set_options(text: str) -> set[str]:
    """Return which options are set that may have a default in the environment. Values of
    other options that begin with a dash count as options.

    >>> sorted(set_options("-p debug --qo=high --time-min 5"))
    ['partition', 'qos']

    Raises PlacerError for a quotation mark without its other one.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PlacerError(
            f"slurm: 'sbatch' is no list of options: {str(error).lower()}: {text}"
        ) from None
    found = set()
    for word in words:
        if word.startswith("--"):
            given = word[2:].partition("=")[0]  # sbatch takes the beginning of a name
            found |= {name for name in _NAMES if given and name.startswith(given)}
        elif (match := _SHORT.match(word)) and match[1] in _LETTERS:
            found.add(_LETTERS[match[1]])
    return found
