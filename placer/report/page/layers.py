"""Finds the layer of each op: the input, op or composite of the spec that it belongs to."""

from __future__ import annotations

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import is_conversion
from placer.report.layers import format_output, kind_in_spec


class Layers:
    """The layers of a graph.

    A gradient, and a sum of gradients, belongs to the layer of its forward op.

    Attributes:
        kinds: the kind of each layer, as in a spec.
        main: the op of each layer with the layer's name, or else its last op.
    """

    def __init__(self, graph: Graph) -> None:
        self.main: dict[str, Op] = {}
        self._of: dict[Op, str] = {}
        kinds: dict[str, set[str]] = {}
        producers = graph.producers
        for op in graph.ops:
            if not op.is_computed:
                continue
            kind, name = op.kind, op.results[0].name
            if kind == "accumulate":
                made = producers.get(op.attrs["of"])
                self._of[op] = self._of.get(made, "") if made else ""
                self._of[op] = self._of[op] or op.attrs["of"].partition(".")[0]
                continue
            if kind.endswith(".grad"):
                forward = producers[op.operands[0]]
                self._of[op] = self._of.get(forward) or name.partition(".")[0]
                continue
            layer, _, rest = name.partition(".")
            self._of[op] = layer
            main = self.main.get(layer)
            if "grad" not in rest.split("."):
                kinds.setdefault(layer, set()).add(kind)
            if kind == "constant" or is_conversion(kind):
                continue
            if main is not None and (
                main.results[0].name == layer or "grad" in rest.split(".")
            ):
                continue
            self.main[layer] = op
        self.kinds = {
            layer: kind_in_spec(main, kinds.get(layer, set()))
            for layer, main in self.main.items()
        }

    def of(self, op: Op) -> str:
        """Return the layer of a computed op, such as `h1` for the gradients of `h1`."""
        return self._of[op]

    def key(self, op: Op) -> tuple[str, str]:
        """Return the name and the kind of the layer of a computed op."""
        layer = self._of[op]
        return layer, self.kinds.get(layer, op.kind)

    def output(self, layer: str) -> str:
        """Return the shape of the first result of a layer; empty if it is unknown."""
        main = self.main.get(layer)
        return "" if main is None else format_output(main)
