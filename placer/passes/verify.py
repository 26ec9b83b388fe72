"""The verifier: what every graph must hold, before and after each pass.

Each stage of the compiler adds to what is legal: see `Stage`.
"""

from __future__ import annotations

from enum import IntEnum

from placer.errors import GraphError, PlacerError
from placer.graph.graph import Graph, Op
from placer.graph.structure import MESSAGES, RECIPES, is_conversion


class Stage(IntEnum):
    """How far a graph has come; each stage holds what those before it hold."""

    WRITTEN = 0
    """Names are defined once and before their use."""
    DIFFERENTIATED = 1
    """No recipe for an optimizer is left without its gradient and update ops."""
    PLACED = 2
    """Every op has a place that the cluster has."""
    LAID_OUT = 3
    """Every value has a layout, and an op finds its operands where it runs."""
    TRANSFERRED = 4
    """No value crosses hosts but through send and listen_and_serv."""


def verify(graph: Graph, stage: Stage) -> None:
    """Raise GraphError, with the op's text, at the first rule that is broken."""
    defined: set[str] = set()
    for op in graph.ops:
        for name in op.operands:
            if name not in defined:
                raise _broken(op, f"'{name}' is used before it is defined")
        for value in op.results:
            if value.name in defined:
                raise _broken(op, f"'{value.name}' is defined twice")
            defined.add(value.name)
        if stage >= Stage.PLACED:
            _check_place(graph, op)
    if stage >= Stage.DIFFERENTIATED and graph.of_kind("minimize"):
        raise GraphError("a differentiated graph still says minimize")
    if stage >= Stage.LAID_OUT:
        _check_layouts(graph, stage)


def _check_place(graph: Graph, op: Op) -> None:
    if op.place is None:
        raise _broken(op, "it has no place")
    try:
        graph.hosts(op)
    except PlacerError as error:
        raise _broken(op, error.message) from error


def _check_layouts(graph: Graph, stage: Stage) -> None:
    producers = graph.producers
    for op in graph.ops:
        for value in op.results:
            if value.layout is None:
                raise _broken(op, f"'{value.name}' has no layout")
        converts = is_conversion(op.kind)
        if (converts and stage < Stage.TRANSFERRED) or op.kind in RECIPES:
            continue
        for name in op.operands:
            producer = producers[name]
            if producer.place is op.place:
                continue
            here, there = graph.hosts(op), graph.hosts(producer)
            if here == there:
                continue
            if op.kind == "accumulate" or converts or op.kind in MESSAGES:
                if not set(there) & set(here):
                    raise _broken(op, f"'{name}' never reaches it")
                continue
            if not set(here) <= set(there):
                raise _broken(op, f"'{name}' is on {there}, not on {here}")


def _broken(op: Op, message: str) -> GraphError:
    from placer.graph.text import print_op

    return GraphError(f"{message}:\n    {print_op(op)}", span=op.source)
