"""Makes text from files and other processes safe to print to a terminal."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tabs and line ends
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # Unicode line ends and directions
    "\ud800-\udfff"  # surrogates, for example for file names that are not UTF-8
    "]"
)


def make_printable(text: str) -> str:
    r"""Replace characters that would control a terminal, or that cannot be encoded.

    >>> ascii(make_printable("a\x1b[2Jb"))
    "'a\\ufffd[2Jb'"
    """
    return _UNSAFE.sub("\ufffd", text)
