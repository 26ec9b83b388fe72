"""Strings and comments of placer avoid ten phrases that readers have to decode."""

import io
import re
import tokenize
from pathlib import Path

import pytest

import placer

PHRASES = {
    r"lockstep": "write synchronous or asynchronous",
    r"\b(has|have|had) come\b": "write received or arrived",
    r"\bwhat (has|have|comes|goes)\b": "name the thing",
    r"\bof (which|whose)\b": "make two sentences",
    r"\bbeside\b": "write next to, besides or except",
    r"\bbut for\b": "write except",
    r"\bin any case\b": "leave it out",
    r"\bby (itself|themselves)\b": "write alone, separately or automatically",
    r"\b(is|are) there\b": "say what exists, or has arrived",
    r"\bworkers that are (first|last)\b": "write fastest workers or stragglers",
}
_ANY = re.compile("|".join(PHRASES).replace(" ", r"\s+"))


_TEXTS = {tokenize.STRING, tokenize.COMMENT}
if hasattr(tokenize, "FSTRING_MIDDLE"):  # from Python 3.12 on, an f-string has parts
    _TEXTS.add(tokenize.FSTRING_MIDDLE)


def found_in(source: str) -> list[str]:
    """Return the phrases in strings and comments, with the line and the advice."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _TEXTS:
            text = re.sub(r"\s+", " ", token.string)
            found += [
                f"{token.start[0]}: {match[0]!r}: {advice}"
                for phrase, advice in PHRASES.items()
                for match in re.finditer(phrase, text)
            ]
    return found


def test_strings_and_comments_avoid_phrases_that_readers_decode():
    sources = sorted(Path(placer.__file__).parent.rglob("*.py"))
    assert len(sources) > 800
    texts = {path: path.read_text(encoding="utf-8") for path in sources}
    found = {
        str(path): phrases
        for path, text in texts.items()
        if _ANY.search(text) and (phrases := found_in(text))
    }
    assert not found


@pytest.mark.parametrize(
    ("source", "phrase"),
    [
        ('"""Workers in lockstep."""', "lockstep"),
        ("x = 1  # what has\n", "what has"),
        ('f"rows of\\n  {x} but for {y}"', "but for"),
        ('"""The rows of\n    which"""', "of which"),
    ],
)
def test_a_phrase_is_found(source, phrase):
    assert _ANY.search(source)
    assert phrase in found_in(source)[0]


def test_code_is_not_read():
    assert not found_in("beside = lockstep\n")
