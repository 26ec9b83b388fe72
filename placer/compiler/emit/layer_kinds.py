"""Finds the kinds of layers, after which programs name the classes of parameters."""

from __future__ import annotations

from placer.compiler.emit.roles import parameter_of
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import is_conversion, is_optimizer_part

_COMPOSITES = {"normalize": "batch_norm", "replica_norm": "batch_norm"}
"""The kind in the spec, by the kind of an op that only such a layer expands to."""


def find_layer_kinds(graph: Graph) -> dict[str, str]:
    """Return the kind of each layer by its name, such as `fc` for the parameter `h1.w`.

    A call of a user's function has a kind with the name of the function. If ops of several
    kinds use the parameters of a layer, its kind is `layer`.
    """
    users: dict[str, dict[str, Op]] = {}
    for op in graph.ops:
        if not op.is_computed or op.is_gradient or _is_inserted(op):
            continue
        for name in op.operands:
            if (parameter := parameter_of(graph, name)) is not None:
                layer = parameter.partition(".")[0]
                users.setdefault(layer, {}).setdefault(_kind(op), op)
    return {layer: _kind_of(graph, layer, found) for layer, found in users.items()}


def _kind_of(graph: Graph, layer: str, users: dict[str, Op]) -> str:
    op = graph.producers.get(layer)
    if op is not None and op.is_computed:
        return _kind(op)
    composites = [kind for kind in users if kind in _COMPOSITES.values()]
    kinds = composites or [*users]
    return kinds[0] if len(kinds) == 1 else "layer"


def _kind(op: Op) -> str:
    if op.kind == "call" and "fn" in op.attrs:
        function = str(op.attrs["fn"]).rpartition(":")[2].rpartition(".")[2]
        return f"{function}_parameters"
    return _COMPOSITES.get(op.kind, op.kind)


def _is_inserted(op: Op) -> bool:
    return (
        is_conversion(op.kind)
        or is_optimizer_part(op.kind)
        or op.kind in ("accumulate", "constant")
    )
