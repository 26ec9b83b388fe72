"""The constants at the top of a program: the numbers of its edges."""

from __future__ import annotations

from collections.abc import Sequence

from placer.compiler.emit.edge_names import edge_names
from placer.compiler.emit.names import Names
from placer.compiler.schedule.units import LoweredGraph


class Constants:
    """The constants of one program.

    Args:
        node: the node, or the first of the nodes, of the program.
        graphs: the graphs of its hooks.
        names: the names of the program.
    """

    def __init__(self, node: str, graphs: Sequence[LoweredGraph], names: Names) -> None:
        self._edges = {
            edge: names.new_name(name) for edge, name in edge_names(node, graphs)
        }
        self._used: set[int] = set()

    def edge(self, number: int) -> str:
        """Return the name of an edge; a program has the names that it uses."""
        self._used.add(number)
        return self._edges[number]

    def lines(self) -> list[str]:
        """Return the definitions of the constants that the program uses."""
        edges = [
            f"{name} = {edge}"
            for edge, name in self._edges.items()
            if edge in self._used
        ]
        if edges:
            edges.insert(
                0, "# Edges: the numbers of the messages between nodes, from plan.json."
            )
        return edges
