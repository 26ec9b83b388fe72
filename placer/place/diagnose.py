"""What is wrong with a place string that the grammar does not take."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from placer.errors import nearest

EXAMPLE = "write for example /node:worker:0,2-3/gpu:0-7"
IDS = "ids are * or a list of numbers and ranges, such as 0,2-3"
NAMES = "a name is lower case letters, digits and _, and starts with a letter"

# What starts a part and is followed by `:`; any other word is a device kind.
PARTS = ("node", "job", "replica", "task", "device")
# Device kinds that hints know; a place may name others.
DEVICES = ("cpu", "gpu", "tpu")

_WORD = re.compile(r"[A-Za-z0-9_]*")
_WORD_BEFORE = re.compile(r"[A-Za-z0-9_]*\Z")


class Explanation(NamedTuple):
    """What is wrong with `text[start:end]`, and what to do about it."""

    message: str
    start: int
    end: int
    hint: str | None = None


def explain(text: str, at: int, accepts: Callable[[str], bool]) -> Explanation:
    """Why the grammar stopped at `text[at]`, or at the end of the text.

    `accepts` says whether the grammar takes a text: a hint suggests no other.
    """
    if not text.startswith("/"):
        return _no_slash(text, accepts)
    start, end = _word(text, at)
    part = text[text.rfind("/", 0, start) : start]
    if part == "/":
        return _part(text, start, end, accepts)
    if part in ("/node:", "/job:"):
        return _name("node", text, start, end)
    if part == "/device:":
        return _name("device kind", text, start, end)
    if part == "/replica:":
        return Explanation("only '/replica:0' is read", start, end)
    if part.endswith((":", ",", "-")):
        return _id(text, part, start, end)
    if text.startswith(",", at) and part.endswith("*"):
        return Explanation("'*' is all ids and stands alone", at, at + 1)
    hint = "a task is one number or *" if part.startswith("/task:") else EXAMPLE
    return Explanation(f"unexpected '{text[at]}'", at, at + 1, hint)


def _no_slash(text: str, accepts: Callable[[str], bool]) -> Explanation:
    known = text.split(":", 1)[0].lower() in (*PARTS, *DEVICES)
    likely = ("/" if known else "/node:") + text
    hint = f"did you mean '{likely}'?" if accepts(likely) else EXAMPLE
    return Explanation("a place starts with '/'", 0, 1, hint)


def _part(
    text: str, start: int, end: int, accepts: Callable[[str], bool]
) -> Explanation:
    """After a slash: neither a device kind nor what starts another part."""
    word, slash = text[start:end], start - 1
    if not word and end == len(text):
        stripped = text.rstrip("/")
        hint = f"did you mean '{stripped}'?" if accepts(stripped) else EXAMPLE
        return Explanation("a place does not end in '/'", slash, end, hint)
    if not word:
        return Explanation("a part is missing after '/'", slash, start, EXAMPLE)
    if word.lower() not in PARTS:
        return _name("device kind", text, start, end)
    if word not in PARTS:
        hint = f"did you mean '/{word.lower()}:'?"
        return Explanation(f"unknown part '/{word}'", slash, end, hint)
    if not text.startswith(":", end):
        message = f"'/{word}' is followed by ':' and what it names"
        return Explanation(message, slash, end, EXAMPLE)
    if word == "replica" and text[end + 1 : end + 2] != "0":
        after = min(end + 2, len(text))
        return Explanation("only '/replica:0' is read", slash, after)
    message = f"'/{word}:' stands once, and only after '/job:NAME'"
    hint = "as in /job:ps/replica:0/task:1, which is /node:ps:1"
    return Explanation(message, slash, end + 1, hint)


def _name(what: str, text: str, start: int, end: int) -> Explanation:
    word = text[start:end]
    if not word:
        message = f"the name of the {what} is missing"
        return Explanation(message, start - 1, start, EXAMPLE)
    lower = word.lower()
    hint = NAMES
    if lower != word and lower[0].isalpha():
        hint = f"did you mean '{lower}'?"
    return Explanation(f"'{word}' is not the name of a {what}", start, end, hint)


def _id(text: str, part: str, start: int, end: int) -> Explanation:
    """Where an id should stand: after the `:`, `,` or `-` that ends `part`."""
    word = text[start:end]
    if text.startswith("-", start):
        return Explanation("an id is not negative", start, start + 1, IDS)
    if text.startswith("*", start):
        return Explanation("'*' is all ids and stands alone", start, start + 1)
    if not word:
        what = "the end of the range" if part[-1] == "-" else "an id"
        message = f"{what} is missing after '{part[-1]}'"
        return Explanation(message, start - 1, start, IDS)
    if word.isdecimal():
        hint = f"did you mean '{word.lstrip('0') or '0'}'?"
        return Explanation("an id has no leading zeros", start, end, hint)
    kind = part[1:-1]
    if _WORD.fullmatch(kind) and kind.lower() not in (*PARTS, *DEVICES):
        close = nearest(f"/{kind.lower()}:", [f"/{name}:" for name in PARTS])
        hint = f"did you mean '{close}'?" if close else EXAMPLE
        return Explanation(f"unknown part '{part}'", start - len(part), start, hint)
    return Explanation(f"'{word}' is not an id", start, end, IDS)


def _word(text: str, at: int) -> tuple[int, int]:
    """The word that `text[at]` is in; empty where it is no letter, digit or `_`."""
    following = _WORD.match(text, at)
    preceding = _WORD_BEFORE.search(text, 0, at)
    assert following is not None
    assert preceding is not None
    if not following[0]:
        return at, at
    return preceding.start(), following.end()
