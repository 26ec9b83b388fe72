"""Estimates the width of a text in a picture, and shortens texts that are too wide.

A picture is drawn before its font is known. The estimates are those of wide fonts, so a
text needs at most the estimated space.
"""

from __future__ import annotations

import unicodedata
from typing import Final

CODE_EM: Final = 0.61
"""The width of a character of a fixed-width font, relative to the font size."""
_NARROW: Final = frozenset("fijlrtI .,:;|!'()[]{}/-")
_NARROW_EM: Final = 0.42
_EM: Final = 0.66
_WIDE_EM: Final = 1.0
_WIDE: Final = frozenset("mwMW@%—…")


def text_width(
    text: str, size: float, *, code: bool = False, bold: bool = False
) -> float:
    """Return an upper estimate of the width of a text, in pixels.

    Args:
        size: the font size in pixels.
        code: True for a fixed-width font.
        bold: True for bold letters.
    """
    em = sum(_em(character, code) for character in text)
    return em * size * (1.08 if bold else 1.0)


def _em(character: str, code: bool) -> float:
    if ord(character) > 0x2FF:
        if unicodedata.combining(character):
            return 0.0
        return 1.3 if unicodedata.east_asian_width(character) in "WFA" else _WIDE_EM
    if code:
        return CODE_EM
    if character in _NARROW:
        return _NARROW_EM
    return _WIDE_EM if character in _WIDE else _EM


def shorten(text: str, width: float, size: float, *, code: bool = False) -> str:
    """Return the text, or its beginning with an ellipsis if it is wider than `width`."""
    if text_width(text, size, code=code) <= width:
        return text
    room = width - text_width("…", size, code=code)
    kept = 0
    for character in text:
        room -= _em(character, code) * size
        if room < 0:
            break
        kept += 1
    return f"{text[:kept].rstrip()}…"


def shorten_middle(text: str, width: float, size: float, *, code: bool = False) -> str:
    """Return the text, or its two ends with an ellipsis between them if it is wider than
    `width`. Names with equal beginnings differ at their ends.

    >>> shorten_middle("logits.attention_key_bias", 120, 10, code=True)
    'logits.at…key_bias'
    """
    if text_width(text, size, code=code) <= width:
        return text
    room = width - text_width("…", size, code=code)
    ends: tuple[list[str], list[str]] = [], []
    for i in range(len(text)):
        end, character = i % 2, text[i // 2 if i % 2 == 0 else -(i // 2 + 1)]
        room -= _em(character, code) * size
        if room < 0:
            break
        ends[end].append(character)
    return f"{''.join(ends[0]).rstrip()}…{''.join(reversed(ends[1])).lstrip()}"
