"""Finds the layer of each op: the input, op or composite of the spec that it belongs to."""

from __future__ import annotations

from placer.compiler.graph.graph import Graph, Op
from placer.report.layers import COMPOSITES, INPUT, format_output


class Layers:
    """The layers of a graph.

    A gradient, and a sum of gradients, belongs to the layer of its forward op.

    Attributes:
        kinds: the kind of each layer, as in a spec.
        main: the op of each layer with the layer's name, or else its last op.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.kinds: dict[str, str] = {}
        self.main: dict[str, Op] = {}
        composites: dict[str, str] = {}
        for op in graph.ops:
            if not op.is_computed or op.is_gradient or op.kind == "constant":
                continue
            name = op.name
            layer, _, rest = name.partition(".")
            main = self.main.get(layer)
            if main is not None and (main.name == layer or "grad" in rest.split(".")):
                continue
            self.main[layer] = op
            self.kinds[layer] = _kind_of(op)
            if op.kind in COMPOSITES:
                composites[layer] = COMPOSITES[op.kind]
        self.kinds.update(composites)

    def of(self, op: Op) -> str:
        """Return the layer of a computed op, such as `h1` for the gradients of `h1`."""
        name = op.name
        if op.is_gradient:
            name = self._graph.producers[op.operands[0]].name
        elif op.kind == "accumulate":
            made = self._graph.producers.get(op.attrs["of"])
            name = op.attrs["of"] if made is None else made.name
        return name.partition(".")[0]

    def output(self, layer: str) -> str:
        """Return the shape of the first result of a layer; empty if it is unknown."""
        main = self.main.get(layer)
        return "" if main is None else format_output(main)


def _kind_of(op: Op) -> str:
    if op.kind == "read":
        return INPUT
    if op.kind == "call" and "fn" in op.attrs:
        return f"call {op.attrs['fn']}"
    return op.kind
