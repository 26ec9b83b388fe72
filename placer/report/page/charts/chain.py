"""Draws the longest chain of work and messages of the median step as a bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placer.report.numbers import format_ms, format_size
from placer.report.page.charts.axes import Scale, time_axis
from placer.report.page.charts.figure import WIDTH, box, chart, text_in
from placer.report.page.charts.slices import merge_slices
from placer.report.page.svg import class_name
from placer.report.step.facts import Piece, SliceFacts, StepTime

MOST_PIECES = 1000
_BAR = 38
_MARGIN = 22
"""The space for half of the first and the last number of the axis."""


def chain_chart(step_time: StepTime) -> str:
    """Draw the pieces of the chain from the start of the step to its end, with the node
    and the time of each."""
    if not step_time.chain or not step_time.seconds:
        return ""
    scale = Scale(0, step_time.seconds, _MARGIN, WIDTH - _MARGIN)
    return chart(
        step_time.sentence,
        26 + _BAR + 6,
        time_axis(scale, 16, 26 + _BAR + 4),
        *_pieces(step_time.chain, scale, 26),
    )


def _pieces(chain: Sequence[Piece], scale: Scale, y: float) -> Iterator[str]:
    pixel = scale.high / (scale.end - scale.start)
    slices = [
        SliceFacts(piece.start, piece.end, piece.category, str(i), 0)
        for i, piece in enumerate(chain)
    ]
    (merged,) = merge_slices([slices], pixel, MOST_PIECES)
    for each in merged:
        x, width = scale(each.start), scale(each.end) - scale(each.start)
        class_ = class_name("cat", each.category)
        if each.count > 1:
            title = f"{each.count} pieces: {format_ms(each.end - each.start)}"
            yield box(x, y, width, _BAR, class_, title)
            continue
        piece = chain[int(each.name)]
        time = format_ms(piece.end - piece.start)
        yield box(x, y, width, _BAR, class_, _title(piece))
        yield text_in(x, y + 16, width, [piece.name])
        where = f"{piece.source} to {piece.target}" if piece.source else piece.node
        yield text_in(
            x, y + 31, width, [f"{where} {time}", f"{piece.node} {time}", time]
        )


def _title(piece: Piece) -> str:
    time = f"{format_ms(piece.end - piece.start)}, at {format_ms(piece.start)}"
    if piece.source:
        size = f", {format_size(piece.nbytes)}" if piece.nbytes else ""
        route = f"from {piece.source} to {piece.target}"
        return f"{piece.name} ({piece.category}) {route}{size}: {time}"
    return f"{piece.name} ({piece.category}) on {piece.node}: {time}"
