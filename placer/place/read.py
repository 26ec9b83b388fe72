"""Reading a place string by `grammar/place.lark`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, cast

from placer.errors import PlaceError, Span
from placer.place.diagnose import DEVICES, EXAMPLE, explain
from placer.place.ids import MAX_ID, Ids, fold
from placer.resources import find

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

MAX_LENGTH = 1_000

_FOREIGN = re.compile(r"[^A-Za-z0-9_/:,*-]")


class Parts(NamedTuple):
    """What a place string says."""

    node: str | None
    node_ids: Ids
    device: str | None
    device_ids: Ids


@lru_cache(maxsize=4096)
def read(text: str) -> Parts:
    """The parts of a place string.

    Raises PlaceError; its span is in file `<place>`, line 1.
    """
    _check_characters(text)
    said: dict[str, tuple[str, Ids]] = {}
    found = cast("list[Tree[Token]]", _parse(text).children)
    for part in found:
        name, ids = cast("tuple[Token, Tree[Token] | None]", part.children)
        if part.data in said:
            if part.data == "device" and (meant := _unsaid_node(text, found)):
                raise meant
            raise mistake(
                text,
                f"the {part.data} is said twice",
                *_stretch(text, name),
                hint=f"a place says one {part.data} kind; more of its ids go in a "
                "list, as in /gpu:0,2-3",
            )
        # TensorFlow writes device kinds in upper case.
        said[part.data] = (name.lower(), _ids(text, ids))
    return Parts(*said.get("node", (None, None)), *said.get("device", (None, None)))


def _unsaid_node(text: str, parts: list[Tree[Token]]) -> PlaceError | None:
    """The error of `/worker/cpu`, where `node:` is missing; None for other places."""
    names = [cast("Token", part.children[0]) for part in parts]
    unknown = [name for name in names if name.lower() not in DEVICES]
    if len(parts) != 2 or len(unknown) != 1:
        return None
    start, end = _stretch(text, unknown[0])
    likely = f"{text[:start]}node:{text[start:]}".replace("/device:node:", "/node:")
    if not accepts(likely):
        return None
    message = f"'{unknown[0]}' is read as a device; a node is written with 'node:'"
    return mistake(text, message, start, end, hint=f"did you mean '{likely}'?")


def mistake(
    text: str, message: str, start: int, end: int, *, hint: str | None = None
) -> PlaceError:
    """An error at `text[start:end]`, or at the character before an end of the text."""
    start = max(0, min(start, len(text) - 1))
    # One character for one, so that the caret stays under what it points at.
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    span = Span("<place>", 1, start + 1, max(1, end - start), shown)
    return PlaceError(message, span=span, hint=hint)


def _check_characters(text: str) -> None:
    if not text:
        raise mistake(text, "the place is empty", 0, 0, hint=EXAMPLE)
    if len(text) > MAX_LENGTH:
        message = f"the place is {len(text)} characters long, and {MAX_LENGTH} is most"
        raise mistake(text[:40] + "...", message, 0, 43)
    foreign = _FOREIGN.search(text)
    if foreign:
        at = foreign.start()
        if foreign[0].isspace():
            likely = "".join(text.split())
            hint = f"did you mean '{likely}'?" if accepts(likely) else EXAMPLE
            raise mistake(text, "a place holds no blanks", at, at + 1, hint=hint)
        message = f"{foreign[0]!r} does not belong in a place"
        raise mistake(text, message, at, at + 1, hint=EXAMPLE)


@lru_cache(maxsize=1)
def _parser() -> Lark:
    # Imported here: the command line prints help without it.
    from lark import Lark

    grammar = find("grammar/place.lark").read_text(encoding="utf-8")
    return Lark(grammar, start="place", parser="lalr", maybe_placeholders=True)


def _parse(text: str) -> Tree[Token]:
    from lark.exceptions import UnexpectedInput, UnexpectedToken

    try:
        return _parser().parse(text)
    except UnexpectedInput as error:
        # The token of the end borrows the position of the last one before it.
        ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        at = len(text) if ended else error.pos_in_stream or 0
        message, start, end, hint = explain(text, at, accepts)
        raise mistake(text, message, start, end, hint=hint) from None


def accepts(text: str) -> bool:
    """Whether the grammar takes the text: what a hint suggests must be one that does."""
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
    found: set[int] = set()
    for listed in cast("list[Tree[Token]]", ranges):
        tokens = cast("list[Token | None]", listed.children)
        found.update(_range(text, [t for t in tokens if t is not None], found))
    return tuple(sorted(found))


def _range(text: str, tokens: list[Token], before: set[int]) -> range:
    """The ids of one `N` or `A-B`; `before` are those of the ranges before it."""
    for token in tokens:
        # By length first: int() refuses thousands of digits.
        if len(token) > len(str(MAX_ID)) or int(token) > MAX_ID:
            start, end = _stretch(text, token)
            message = f"the id is too large; {MAX_ID} is the largest"
            raise mistake(text, message, start, end)
    first, last = int(tokens[0]), int(tokens[-1])
    start, end = _stretch(text, tokens[0])[0], _stretch(text, tokens[-1])[1]
    if first > last:
        hint = f"did you mean '{last}-{first}'?"
        raise mistake(text, f"the range {first}-{last} falls", start, end, hint=hint)
    ids = range(first, last + 1)
    twice = fold(sorted(before.intersection(ids)))
    if twice:
        ids_are = "id {} is" if twice.isdecimal() else "ids {} are"
        message = f"{ids_are.format(twice)} said twice"
        raise mistake(text, message, start, end)
    return ids


def _stretch(text: str, token: Token) -> tuple[int, int]:
    start = token.start_pos or 0
    return start, start + len(token)
