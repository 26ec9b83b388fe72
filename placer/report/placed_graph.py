"""Shows a placed graph for people: each op in two aligned lines, colored by place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

from rich.text import Text

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.text import print_graph_head, print_results, print_use
from placer.report.explain import LAYOUT_TEXTS, MICROBATCH_LAYOUT_TEXTS

_COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red")
_STYLES = (*_COLORS, *(f"bright_{color}" for color in _COLORS))


def show_graph(graph: Graph, width: int) -> Iterator[Text]:
    """Yield a legend and the ops of a graph, in lines of at most `width` characters.

    The first line of an op has its results with types and layouts. The second line has its
    kind, operands, attributes and place. Longer lines continue with an indentation.
    """
    yield from legend(graph)
    yield Text()
    for line in _wrap(print_graph_head(graph), "", "  ", width):
        yield Text(line, "bold")
    styles = place_styles(graph)
    for op in graph.ops:
        style = styles.get(str(op.place), "")
        for line in _op_lines(op, width):
            yield Text(line, style)


def legend(graph: Graph) -> Iterator[Text]:
    """Yield the meaning of each letter after a type, and the places in their colors."""
    values = [value for op in graph.ops for value in op.results]
    layouts = {value.layout for value in values}
    yield Text(
        "letters after a type: the layout of the value on the nodes of its place"
    )
    for layout, text in LAYOUT_TEXTS.items():
        if layout in layouts:
            yield Text(f"  {layout}  {text}")
    layouts = {value.microbatch_layout for value in values}
    if layouts - {None}:
        yield Text("letters after a slash: the layout over the microbatches of a step")
    for layout, text in MICROBATCH_LAYOUT_TEXTS.items():
        if layout in layouts:
            yield Text(f"  /{layout}  {text}")
    shown = (Text(place, style) for place, style in place_styles(graph).items())
    yield Text("places: ").append_text(Text("  ").join(shown))


def place_styles(graph: Graph) -> dict[str, str]:
    """Return a color for each place, in order of first use in the graph."""
    places = dict.fromkeys(str(op.place) for op in graph.ops if op.place is not None)
    return {place: _STYLES[i % len(_STYLES)] for i, place in enumerate(places)}


def _op_lines(op: Op, width: int) -> Iterable[str]:
    if not op.results:
        return _wrap(print_use(op), "  ", "      ", width)
    return [
        *_wrap(print_results(op), "  ", "      ", width),
        *_wrap(print_use(op), "    = ", "      ", width),
    ]


def _wrap(text: str, first: str, following: str, width: int) -> list[str]:
    return wrap(
        text,
        max(width, 20),
        initial_indent=first,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )
