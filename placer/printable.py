"""Text that others wrote, as it can be shown: it steers no terminal."""

from __future__ import annotations

import re

_STEERING = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for tabs and line ends
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line ends and directions of Unicode
    "\ud800-\udfff"  # what cannot be encoded, as bytes of a file name that are no UTF-8
    "]"
)


def legible(text: str) -> str:
    """The text with a visible character in place of each that a terminal would obey, or
    that cannot be written to one.

    >>> ascii(legible("a\\x1b[2Jb"))
    "'a\\\\ufffd[2Jb'"
    """
    return _STEERING.sub("\N{REPLACEMENT CHARACTER}", text)
