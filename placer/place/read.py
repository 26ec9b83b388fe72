"""Parses a place string by `grammar/place.lark`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from placer.errors import PlaceError, Span
from placer.place.diagnose import DEVICES, EXAMPLE, diagnose
from placer.place.ids import MAX_ID, Ids, format_ids
from placer.system.resources import find_file

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

MAX_LENGTH = 1_000

_FOREIGN = re.compile(r"[^A-Za-z0-9_/:,*-]")


@lru_cache(maxsize=4096)
def read_place(text: str) -> tuple[str | None, Ids, str | None, Ids, Ids]:
    """Parse a place string and return the fields of its `Place`. Raises PlaceError with
    a span in file `<place>`, line 1, if `text` is invalid."""
    _check_characters(text)
    fields: dict[str, tuple[str, Ids]] = {}
    parts = cast("list[Tree[Token]]", _parse(text).children)
    for part in parts:
        name, ids = cast("tuple[Token, Tree[Token] | None]", part.children)
        if part.data in fields:
            if part.data == "device" and (error := _missing_node_prefix(text, parts)):
                raise error
            raise place_error(
                text,
                f"the {part.data} is given twice",
                *_bounds(text, name),
                hint=f"a place can have only one {part.data} kind; write several ids"
                " as a list, as in /gpu:0,2-3",
            )
        # TensorFlow writes device kinds in upper case.
        fields[part.data] = (name.lower(), _ids(text, ids))
    for part in parts:
        if part.data == "thread" and "node" not in fields:
            bounds = _bounds(text, cast("Token", part.children[0]))
            raise place_error(
                text,
                "a thread number needs the name of a node",
                *bounds,
                hint=EXAMPLE,
            )
    nothing = (None, None)
    _, threads = fields.get("thread", nothing)
    return *fields.get("node", nothing), *fields.get("device", nothing), threads


def _missing_node_prefix(text: str, parts: list[Tree[Token]]) -> PlaceError | None:
    """Return the error of `/worker/cpu`, which lacks `node:`; None for other places."""
    names = [cast("Token", part.children[0]) for part in parts if part.data != "thread"]
    unknown = [name for name in names if name.lower() not in DEVICES]
    if len(names) != 2 or len(unknown) != 1:
        return None
    start, end = _bounds(text, unknown[0])
    likely = f"{text[:start]}node:{text[start:]}".replace("/device:node:", "/node:")
    if not is_valid(likely):
        return None
    message = f"'{unknown[0]}' is read as a device, because 'node:' is missing"
    return place_error(text, message, start, end, hint=f"did you mean '{likely}'?")


def place_error(
    text: str, message: str, start: int, end: int, *, hint: str | None = None
) -> PlaceError:
    """Return a PlaceError at `text[start:end]`, or at the last character of `text`."""
    start = max(0, min(start, len(text) - 1))
    # Replace each character by a single character, so the caret stays in its column.
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text)
    span = Span("<place>", 1, start + 1, max(1, end - start), shown)
    return PlaceError(message, span=span, hint=hint)


def _check_characters(text: str) -> None:
    if not text:
        raise place_error(text, "the place is empty", 0, 0, hint=EXAMPLE)
    if len(text) > MAX_LENGTH:
        message = f"the place has {len(text)} characters, more than {MAX_LENGTH}"
        raise place_error(text[:40] + "...", message, 0, 43)
    foreign = _FOREIGN.search(text)
    if foreign:
        at = foreign.start()
        if foreign[0].isspace():
            likely = "".join(text.split())
            hint = f"did you mean '{likely}'?" if is_valid(likely) else EXAMPLE
            message = "a place cannot contain whitespace"
            raise place_error(text, message, at, at + 1, hint=hint)
        message = f"a place cannot contain {foreign[0]!r}"
        raise place_error(text, message, at, at + 1, hint=EXAMPLE)


@lru_cache(maxsize=1)
def _parser() -> Lark:
    # Imported here, so that the command line prints help without loading lark.
    from lark import Lark

    grammar = find_file("grammar/place.lark").read_text(encoding="utf-8")
    return Lark(grammar, start="place", parser="lalr", maybe_placeholders=True)


def _parse(text: str) -> Tree[Token]:
    from lark.exceptions import UnexpectedInput, UnexpectedToken

    try:
        return _parser().parse(text)
    except UnexpectedInput as error:
        # The end token has the position of the token before it.
        ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        at = len(text) if ended else error.pos_in_stream or 0
        message, start, end, hint = diagnose(text, at, is_valid)
        raise place_error(text, message, start, end, hint=hint) from None


def is_valid(text: str) -> bool:
    """Return True if the grammar accepts the text."""
    from lark.exceptions import UnexpectedInput

    try:
        _parser().parse(text)
    except UnexpectedInput:
        return False
    return True


def _ids(text: str, tree: Tree[Token] | None) -> Ids:
    if tree is None:
        return None
    if tree.data == "all":
        return "*"
    ranges = [tree] if tree.data == "single" else tree.children
    ids: set[int] = set()
    for listed in cast("list[Tree[Token]]", ranges):
        tokens = cast("list[Token | None]", listed.children)
        ids.update(_range(text, [t for t in tokens if t is not None], ids))
    return tuple(sorted(ids))


def _range(text: str, tokens: list[Token], before: set[int]) -> range:
    """Return the ids of one `N` or `A-B`. `before` contains the ids of earlier
    ranges.
    """
    for token in tokens:
        # Check the length first: int() raises for thousands of digits.
        if len(token) > len(str(MAX_ID)) or int(token) > MAX_ID:
            start, end = _bounds(text, token)
            message = f"the id is too large; {MAX_ID} is the largest"
            raise place_error(text, message, start, end)
    first, last = int(tokens[0]), int(tokens[-1])
    start, end = _bounds(text, tokens[0])[0], _bounds(text, tokens[-1])[1]
    if first > last:
        hint = f"did you mean '{last}-{first}'?"
        raise place_error(
            text, f"the range {first}-{last} is descending", start, end, hint=hint
        )
    ids = range(first, last + 1)
    twice = format_ids(sorted(before.intersection(ids)))
    if twice:
        ids_are = "id {} is" if twice.isdecimal() else "ids {} are"
        message = f"{ids_are.format(twice)} given twice"
        raise place_error(text, message, start, end)
    return ids


def _bounds(text: str, token: Token) -> tuple[int, int]:
    start = token.start_pos or 0
    return start, start + len(token)
