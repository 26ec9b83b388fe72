"""Explains why the grammar rejects a place string, with a message and a hint."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from placer.errors import nearest

EXAMPLE = "write for example /node:worker:0,2-3/gpu:0-7"
IDS = "ids are * or a list of numbers and ranges, such as 0,2-3"
NAMES = "a name is lower case letters, digits and _, and starts with a letter"

# Words that start a part of a place before a `:`. Other words are device kinds.
PARTS = ("node", "job", "replica", "task", "thread", "device")
# Device kinds that hints suggest. Places may use other kinds.
DEVICES = ("cpu", "gpu", "tpu")

_WORD = re.compile(r"[A-Za-z0-9_]*")


class Diagnosis(NamedTuple):
    """The error of `text[start:end]`, and a hint how to fix it."""

    message: str
    start: int
    end: int
    hint: str | None = None


def diagnose(text: str, at: int, is_valid: Callable[[str], bool]) -> Diagnosis:
    """Explain why the grammar stopped at `text[at]`, or at the end of the text. Hints
    only suggest texts for which `is_valid` is true."""
    if not text.startswith("/"):
        return _diagnose_start(text, is_valid)
    start, end = _word_bounds(text, at)
    part = text[text.rfind("/", 0, start) : start]
    if part == "/":
        return _diagnose_part(text, start, end, is_valid)
    if part in ("/node:", "/job:"):
        return _diagnose_name("node", text, start, end)
    if part == "/device:":
        return _diagnose_name("device kind", text, start, end)
    if part == "/thread":
        return Diagnosis("'/thread' must be followed by ':' and a number", at - 7, at)
    if part == "/replica:":
        return Diagnosis("the only replica is 0: '/replica:0'", start, end)
    if part.endswith((":", ",", "-")):
        return _diagnose_id(text, part, start, end)
    if text.startswith(",", at) and part.endswith("*"):
        return Diagnosis(
            "'*' means all ids and cannot be combined with other ids", at, at + 1
        )
    hint = "a task is one number or *" if part.startswith("/task:") else EXAMPLE
    return Diagnosis(f"unexpected '{text[at]}'", at, at + 1, hint)


def _diagnose_start(text: str, is_valid: Callable[[str], bool]) -> Diagnosis:
    known = text.split(":", 1)[0].lower() in (*PARTS, *DEVICES)
    likely = ("/" if known else "/node:") + text
    hint = f"did you mean '{likely}'?" if is_valid(likely) else EXAMPLE
    return Diagnosis("a place starts with '/'", 0, 1, hint)


def _diagnose_part(
    text: str, start: int, end: int, is_valid: Callable[[str], bool]
) -> Diagnosis:
    """Diagnose text after a slash that is neither a part nor a device kind."""
    word, slash = text[start:end], start - 1
    if not word and end == len(text):
        stripped = text.rstrip("/")
        hint = f"did you mean '{stripped}'?" if is_valid(stripped) else EXAMPLE
        return Diagnosis("a place cannot end with '/'", slash, end, hint)
    if not word:
        return Diagnosis("a part is missing after '/'", slash, start, EXAMPLE)
    if word.lower() not in PARTS:
        return _diagnose_name("device kind", text, start, end)
    if word not in PARTS:
        hint = f"did you mean '/{word.lower()}:'?"
        return Diagnosis(f"unknown part '/{word}'", slash, end, hint)
    if not text.startswith(":", end):
        message = f"'/{word}' must be followed by ':' and a name"
        return Diagnosis(message, slash, end, EXAMPLE)
    if word == "replica" and text[end + 1 : end + 2] != "0":
        after = min(end + 2, len(text))
        return Diagnosis("the only replica is 0: '/replica:0'", slash, after)
    message = f"'/{word}:' is allowed only once, after '/job:NAME'"
    hint = "as in /job:ps/replica:0/task:1, which is /node:ps:1"
    return Diagnosis(message, slash, end + 1, hint)


def _diagnose_name(what: str, text: str, start: int, end: int) -> Diagnosis:
    word = text[start:end]
    if not word:
        message = f"the name of the {what} is missing"
        return Diagnosis(message, start - 1, start, EXAMPLE)
    lower = word.lower()
    hint = NAMES
    if lower != word and lower[0].isalpha():
        hint = f"did you mean '{lower}'?"
    return Diagnosis(f"'{word}' is not a valid name of a {what}", start, end, hint)


def _diagnose_id(text: str, part: str, start: int, end: int) -> Diagnosis:
    """Diagnose text that is not an id, after the `:`, `,` or `-` at the end of
    `part`.
    """
    word = text[start:end]
    if text.startswith("-", start):
        return Diagnosis("an id cannot be negative", start, start + 1, IDS)
    if text.startswith("*", start):
        return Diagnosis(
            "'*' means all ids and cannot be combined with other ids", start, start + 1
        )
    if not word:
        what = "the end of the range" if part[-1] == "-" else "an id"
        message = f"{what} is missing after '{part[-1]}'"
        return Diagnosis(message, start - 1, start, IDS)
    if word.isdecimal():
        hint = f"did you mean '{word.lstrip('0') or '0'}'?"
        return Diagnosis("an id cannot have leading zeros", start, end, hint)
    kind = part[1:-1]
    if _WORD.fullmatch(kind) and kind.lower() not in (*PARTS, *DEVICES):
        close = nearest(f"/{kind.lower()}:", [f"/{name}:" for name in PARTS])
        hint = f"did you mean '{close}'?" if close else EXAMPLE
        return Diagnosis(f"unknown part '{part}'", start - len(part), start, hint)
    return Diagnosis(f"'{word}' is not an id", start, end, IDS)


def _word_bounds(text: str, at: int) -> tuple[int, int]:
    """Return the bounds of the word around `text[at]`, which may be empty."""
    bounds = (word.span() for word in _WORD.finditer(text))
    return next(((start, end) for start, end in bounds if start <= at < end), (at, at))
