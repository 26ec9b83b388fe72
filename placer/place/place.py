"""A place: the nodes and devices where an op runs."""

from __future__ import annotations

import re
from itertools import pairwise

from msgspec import Struct

from placer.errors import PlaceError, Span
from placer.place.diagnose import NAMES, PARTS
from placer.place.ids import MAX_ID, Ids, ids_suffix
from placer.place.read import read_place

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Place(Struct, frozen=True):
    """The nodes and devices where an op runs, such as `/node:worker:0/gpu:0-7`.

    A field is None if the place string lacks that part. `Place()` is the empty place.
    `str` returns the place string, which is empty for the empty place.

    Args:
        node: The node kind, such as `worker`.
        node_ids: The ids of the nodes, as an increasing tuple, or `"*"` for all.
        device: The device kind, such as `gpu`.
        device_ids: The ids of the devices, as an increasing tuple, or `"*"` for all.
        threads: The numbers of threads of each node, or `"*"` for all. Only the
            compiler makes such places, for nodes that are threads of one process.

    Raises:
        PlaceError: If no place string has these fields: for example ids without a name.

    Example:
        >>> Place.parse("/node:worker:1/gpu").node_ids
        (1,)
        >>> str(Place("worker", None, "gpu", (0, 1, 2)))
        '/node:worker/gpu:0-2'
    """

    node: str | None = None
    node_ids: Ids = None
    device: str | None = None
    device_ids: Ids = None
    threads: Ids = None

    def __post_init__(self) -> None:
        _check("node", self.node, self.node_ids)
        _check("device", self.device, self.device_ids)
        if self.node is None and self.threads is not None:
            raise PlaceError("a thread number needs the name of a node")
        _check("thread", self.node, self.threads)
        if self.device in PARTS:
            raise PlaceError(f"'{self.device}' cannot name a device kind")

    @classmethod
    def parse(cls, text: str, *, span: Span | None = None) -> Place:
        """Parse a place string such as `/node:worker:0,2-3/gpu:0-7`.

        The grammar is `grammar/place.lark`.

        Args:
            text: The place string.
            span: The position of `text` in a file, for errors.

        Returns:
            The place.

        Raises:
            PlaceError: If `text` is not a place string, with its position and a hint.
        """
        try:
            return cls(*read_place(text))
        except PlaceError as error:
            if span is None or error.span is None:
                raise
            moved = _span_in_file(error.span, text, span)
            raise PlaceError(error.message, span=moved, hint=error.hint) from None

    def __str__(self) -> str:
        node = f"/node:{self.node}{ids_suffix(self.node_ids)}" if self.node else ""
        if self.threads is not None:
            node += f"/thread{ids_suffix(self.threads)}"
        return (
            f"{node}/{self.device}{ids_suffix(self.device_ids)}"
            if self.device
            else node
        )

    @staticmethod
    def merge(outer: Place | None, inner: Place | None) -> Place:
        """Return the place of an op at `inner`, inside a scope at `outer`.

        The places merge field by field, and the inner place wins. A new name drops the
        outer ids; the same name without ids keeps them. An inner None clears the place.

        Merge several scopes from the outside in. The other order differs if a name with
        ids is replaced by another name and then used again.
        """
        if inner is None:
            return Place()
        if outer is None:
            return inner
        return Place(
            *_merge(outer.node, outer.node_ids, inner.node, inner.node_ids),
            *_merge(outer.device, outer.device_ids, inner.device, inner.device_ids),
            outer.threads if inner.threads is None else inner.threads,
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
            raise PlaceError(f"{what} ids need the name of a {what}")
        return
    if not _NAME.fullmatch(name):
        raise PlaceError(f"{name!r} is not a valid name of a {what}", hint=NAMES)
    if ids is None or ids == "*":
        return
    rising = all(a < b for a, b in pairwise(ids))
    if not isinstance(ids, tuple) or not ids or not rising:
        raise PlaceError(
            f"{what} ids must be a tuple of increasing numbers, not {ids!r}"
        )
    if ids[0] < 0 or ids[-1] > MAX_ID:
        raise PlaceError(f"{what} ids must be between 0 and {MAX_ID}, not {ids!r}")


def _span_in_file(inside: Span, text: str, span: Span) -> Span:
    """Convert a span inside a place string to a span in the file."""
    start = span.text.find(text, span.column - 1, span.column - 1 + span.length)
    if start < 0:  # The string is escaped or spans several lines: point at all of it.
        return span
    column = start + inside.column
    return Span(span.file, span.line, column, inside.length, span.text)
