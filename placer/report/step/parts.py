"""Divides the longest chains of several steps into parts, with their mean times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Final

from placer.report.step.critical_path import MESSAGE, OTHER
from placer.report.step.facts import Part, Piece
from placer.runtime.timeline.recorder import (
    COMPUTE,
    READ,
    RECEIVE,
    ROWS,
    SEND,
    UPDATE,
    WAIT,
)

_NAMES: Final = {OTHER: "other work", READ: "reading rows"}
"""The texts for work whose name in a trace is not used, by category."""
MESSAGES: Final = "messages"
UPDATES: Final = "updates and lookups"
_KINDS: Final = {
    MESSAGE: MESSAGES,
    SEND: MESSAGES,
    RECEIVE: MESSAGES,
    COMPUTE: "computing",
    READ: "reading",
    UPDATE: UPDATES,
    ROWS: UPDATES,
    WAIT: "waits",
}
"""The kind of work of each category. All others are other work."""


def item_of(piece: Piece) -> str:
    """Return the work of a piece and its node, or its message and its nodes.

    The pieces that send, carry and receive a message have the same item.
    """
    if piece.target:
        return f"{piece.name} from {piece.source} to {piece.target}"
    return f"{_NAMES.get(piece.category, piece.name)} on {piece.node}"


def kind_of(piece: Piece) -> str:
    """Return the kind of work of a piece, such as "messages"."""
    return _KINDS.get(piece.category, "other work")


def group_of(piece: Piece) -> str:
    """Return the kind of work of a piece and its node, or the nodes of its message."""
    if piece.target:
        return f"messages from {piece.source} to {piece.target}"
    return f"{kind_of(piece)} on {piece.node}"


def parts_of(
    chains: Sequence[Sequence[Piece]], name: Callable[[Piece], str]
) -> tuple[Part, ...]:
    """Return the parts of the chains of several steps, longest first.

    Args:
        chains: the longest chain of each step.
        name: returns the name of the part to which a piece belongs.
    """
    steps = [_seconds(chain, name) for chain in chains]
    names = dict.fromkeys(each for step in steps for each in step)
    return tuple(sorted(_parts(names, steps), key=lambda part: -part.seconds))


def _seconds(
    chain: Sequence[Piece], name: Callable[[Piece], str]
) -> Mapping[str, float]:
    found: dict[str, float] = defaultdict(float)
    for piece in chain:
        found[name(piece)] += piece.end - piece.start
    return found


def _parts(
    names: Mapping[str, None], steps: Sequence[Mapping[str, float]]
) -> Iterator[Part]:
    for name in names:
        seconds = [step.get(name, 0.0) for step in steps]
        yield Part(name, fmean(seconds), stdev(seconds) if len(steps) > 1 else 0.0)


def equal_to_first(parts: Sequence[Part]) -> int:
    """Return how many parts are about as long as the first, which is one of them.

    Their differences from the first are at most the larger spread of both, and they are at
    least half as long.
    """
    first = parts[0]
    for count, part in enumerate(parts[1:], start=1):
        difference = first.seconds - part.seconds
        if difference > max(first.spread, part.spread) or difference > part.seconds:
            return count
    return len(parts)
