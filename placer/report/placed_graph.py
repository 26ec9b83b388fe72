"""Colors the text of a placed graph by place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from placer.compiler.graph.graph import Graph
from placer.compiler.graph.text import print_graph

_COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red")
_STYLES = (*_COLORS, *(f"bright_{color}" for color in _COLORS))


def color_graphs(graphs: Sequence[Graph]) -> Iterator[Text]:
    """Yield the lines of the graphs, each op in the color of its place. Without colors
    this is the text that `placer.compiler.graph.text` parses."""
    styles = place_styles(graphs)
    for i, graph in enumerate(graphs):
        if i:
            yield Text()
        head, *lines, end = print_graph(graph).splitlines()
        yield Text(head, "bold")
        for op, line in zip(graph.ops, lines, strict=True):
            yield Text(line, styles.get(str(op.place), ""))
        yield Text(end, "bold")


def legend(graphs: Sequence[Graph]) -> Text:
    """Return one line that lists the places in their colors."""
    styles = place_styles(graphs)
    return Text("  ").join(Text(place, style) for place, style in styles.items())


def place_styles(graphs: Sequence[Graph]) -> dict[str, str]:
    """Return a color for each place, in order of first use in the graphs."""
    places = dict.fromkeys(
        str(op.place) for graph in graphs for op in graph.ops if op.place is not None
    )
    return {place: _STYLES[i % len(_STYLES)] for i, place in enumerate(places)}
