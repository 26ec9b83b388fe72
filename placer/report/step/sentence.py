"""Describes the longest chain of a step in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from placer.report.numbers import format_count, format_ms, plural
from placer.report.step.critical_path import OTHER
from placer.report.step.facts import Piece
from placer.report.step.steps import Step
from placer.report.step.trace import Trace

_MOST: Final = 5
"""The largest number of items in the sentence."""
_NAMES: Final = {OTHER: "other work", "read": "reading rows"}
"""The texts for work whose name in a trace is not used, by category."""
_LEAST: Final = 0.02
"""The smallest fraction of a step for an item of its own, except for the first item."""
_INEXACT: Final = 0.05
"""Clock errors above this fraction of a step are part of the sentence."""


@dataclass(frozen=True, slots=True)
class Item:
    """The pieces of a chain with the same work or message.

    Attributes:
        text: the work and its node, or the message and its nodes.
        seconds: the time of all its pieces.
        pieces: the pieces, in the order of their start.
    """

    text: str
    seconds: float
    pieces: tuple[Piece, ...]


def items_of(chain: Sequence[Piece]) -> list[Item]:
    """Return the items of a chain, longest first.

    The pieces that send, carry and receive a message form one item.
    """
    found: dict[str, list[Piece]] = {}
    for piece in chain:
        found.setdefault(_text(piece), []).append(piece)
    items = [
        Item(text, sum(piece.end - piece.start for piece in pieces), tuple(pieces))
        for text, pieces in found.items()
    ]
    return sorted(items, key=lambda item: -item.seconds)


def _text(piece: Piece) -> str:
    if piece.target:
        return f"{piece.name} from {piece.source} to {piece.target}"
    name = _NAMES.get(piece.category, piece.name)
    return f"{name} on {piece.node}"


def sentence_of(trace: Trace, step: Step, steps: int, chain: Sequence[Piece]) -> str:
    """Return the duration of the median step and its longest chain as text."""
    seconds = step.duration / 1e9
    which = f"step {step.number}"
    if steps > 1:
        which += f", the median of {format_count(steps)}"
    whose = (
        ""
        if step.is_common
        else f" of {trace.threads[step.thread].node}, the slowest worker,"
    )
    items = items_of(chain)
    shown = [
        item
        for at, item in enumerate(items[:_MOST])
        if not at or item.seconds >= _LEAST * seconds
    ]
    texts = [f"{item.text} {format_ms(item.seconds)}" for item in shown]
    rest = items[len(shown) :]
    if rest:
        total = format_ms(sum(item.seconds for item in rest))
        count = sum(len(item.pieces) for item in rest)
        texts.append(f"{total} in {plural(count, 'other piece')}")
    parts = [
        f"A step{whose} takes {format_ms(seconds)} ({which}).",
        f"Its longest chain: {_joined(texts)}.",
    ]
    worst = max(trace.uncertainty.values(), default=0)
    if worst > _INEXACT * step.duration:
        parts.append(
            f"Times on different machines may be wrong by up to {format_ms(worst / 1e9)}."
        )
    return " ".join(parts)


def _joined(texts: Sequence[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)}, and {last}" if first else last
