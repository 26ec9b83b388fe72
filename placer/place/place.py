"""A place: on which nodes an op runs, and on which devices there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from placer.errors import PlaceError, Span
from placer.place.diagnose import NAMES, PARTS
from placer.place.ids import MAX_ID, Ids, suffix
from placer.place.read import read

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Place:
    """What a place string says, by field; None where it says nothing.

    Ids are a rising tuple, or `*` where they are said to be all. `Place()` says nothing
    and prints as the empty string. Raises PlaceError for fields that no string could
    say, such as ids without a name.
    """

    node: str | None = None
    node_ids: Ids = None
    device: str | None = None
    device_ids: Ids = None

    def __post_init__(self) -> None:
        _check("node", self.node, self.node_ids)
        _check("device", self.device, self.device_ids)
        if self.device in PARTS:
            raise PlaceError(f"'{self.device}' cannot name a device kind")

    @classmethod
    def parse(cls, text: str, *, span: Span | None = None) -> Place:
        """Read a place string such as `/node:worker:0,2-3/gpu:0-7`.

        `span` is where the text stands in a file: an error then points into it.
        Raises PlaceError with a caret and a hint. The language is
        `grammar/place.lark`.
        """
        try:
            return cls(*read(text))
        except PlaceError as error:
            if span is None or error.span is None:
                raise
            moved = _moved(error.span, text, span)
            raise PlaceError(error.message, span=moved, hint=error.hint) from None

    def __str__(self) -> str:
        node = f"/node:{self.node}{suffix(self.node_ids)}" if self.node else ""
        return f"{node}/{self.device}{suffix(self.device_ids)}" if self.device else node

    @staticmethod
    def merge(outer: Place | None, inner: Place | None) -> Place:
        """The place of a thing placed at `inner` inside a block placed at `outer`.

        By field, and the inner one wins: a new name drops the outer ids, the same name
        without ids keeps them, and an inner None clears all. Blocks nest from the
        outside in; the other way round differs where a name is left and come back to.
        """
        if inner is None:
            return Place()
        if outer is None:
            return inner
        return Place(
            *_merge(outer.node, outer.node_ids, inner.node, inner.node_ids),
            *_merge(outer.device, outer.device_ids, inner.device, inner.device_ids),
        )


def _merge(
    outer: str | None, outer_ids: Ids, inner: str | None, inner_ids: Ids
) -> tuple[str | None, Ids]:
    if inner is None or (inner == outer and inner_ids is None):
        return outer, outer_ids
    return inner, inner_ids


def _check(what: str, name: str | None, ids: Ids) -> None:
    if name is None:
        if ids is not None:
            raise PlaceError(f"{what} ids without the name of a {what}")
        return
    if not _NAME.fullmatch(name):
        raise PlaceError(
            f"{name!r} is not the name of a {what}",
            hint=NAMES,
        )
    if ids is None or ids == "*":
        return
    rising = all(a < b for a, b in pairwise(ids))
    if not isinstance(ids, tuple) or not ids or not rising:
        raise PlaceError(f"{what} ids are a tuple of rising numbers, not {ids!r}")
    if ids[0] < 0 or ids[-1] > MAX_ID:
        raise PlaceError(f"{what} ids are between 0 and {MAX_ID}, not {ids!r}")


def _moved(inside: Span, text: str, span: Span) -> Span:
    """A span inside a place string as a span inside the file that holds the string."""
    start = span.text.find(text, span.column - 1, span.column - 1 + span.length)
    if start < 0:  # written with escapes or over several lines: point at the whole
        return span
    column = start + inside.column
    return Span(span.file, span.line, column, inside.length, span.text)
