"""The verifier: what every graph must hold, before and after each pass.

Each stage of the compiler adds to what is legal: see `Stage`.
"""

from __future__ import annotations

from enum import IntEnum

from placer.errors import GraphError, PlacerError
from placer.graph.graph import Graph, Op
from placer.graph.structure import CONVERSIONS, MESSAGES, RECIPES, is_conversion
from placer.passes.verify_types import Known, broken, check_types


class Stage(IntEnum):
    """How far a graph has come; each stage holds what those before it hold."""

    WRITTEN = 0
    """Names are defined once and before their use, and types are as declared."""
    DIFFERENTIATED = 1
    """No recipe for an optimizer is left without its gradient and update ops."""
    PLACED = 2
    """Every op has a place that the cluster has."""
    LAID_OUT = 3
    """Every value has a layout, and an op finds its operands where it runs."""
    TRANSFERRED = 4
    """No value crosses hosts but through send and listen_and_serv, which are pairs."""


def verify(graph: Graph, stage: Stage, known: Known | None = None) -> None:
    """Raise GraphError, with the op's text, at the first rule that is broken.

    `known` is what earlier calls, before other passes, have found right.
    """
    check_types(graph, Known() if known is None else known)
    if stage >= Stage.PLACED:
        first_at = {id(op.place): op for op in reversed(graph.ops)}
        for op in reversed(first_at.values()):
            _check_place(graph, op)
    if stage >= Stage.DIFFERENTIATED and graph.of_kind("minimize"):
        raise GraphError("a differentiated graph still says minimize")
    if stage >= Stage.LAID_OUT:
        _check_layouts(graph, stage)
    if stage >= Stage.TRANSFERRED:
        _check_messages(graph)


def _check_place(graph: Graph, op: Op) -> None:
    if op.place is None:
        raise broken(op, "it has no place")
    try:
        graph.hosts(op)
    except PlacerError as error:
        raise broken(op, error.message) from error


def _check_layouts(graph: Graph, stage: Stage) -> None:
    producers = graph.producers
    for op in graph.ops:
        for value in op.results:
            if value.layout is None:
                raise broken(op, f"'{value.name}' has no layout")
        converts = is_conversion(op.kind)
        if converts:
            _check_conversion(graph, op)
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
                    raise broken(op, f"'{name}' never reaches it")
                continue
            if not set(here) <= set(there):
                raise broken(op, f"'{name}' is on {there}, not on {here}")


def _check_conversion(graph: Graph, op: Op) -> None:
    have, need = graph.values[op.operands[0]].layout, op.result.layout
    assert have is not None
    assert need is not None
    if CONVERSIONS[have, need] != op.kind:
        raise broken(op, f"{have} to {need} is {CONVERSIONS[have, need]}")


def _check_messages(graph: Graph) -> None:
    """Every message is sent once, before it is received, and received once."""
    sent: dict[int, Op] = {}
    received: set[int] = set()
    for op in graph.ops:
        if op.kind not in MESSAGES:
            continue
        edge = op.attrs["edge"]
        if op.kind == "send":
            if edge in sent:
                raise broken(op, f"edge {edge} is sent twice")
            sent[edge] = op
            continue
        if edge not in sent or edge in received:
            raise broken(op, f"no message of edge {edge} is on its way")
        received.add(edge)
        _check_pair(graph, sent[edge], op)
    for edge, op in sent.items():
        if edge not in received:
            raise broken(op, f"nobody receives edge {edge}")


def _check_pair(graph: Graph, send: Op, listen: Op) -> None:
    if send.attrs["to"] != listen.place or listen.attrs["from"] != send.place:
        raise broken(listen, f"it goes from {send.place} to {send.attrs['to']}")
    types = [graph.values[name].type for name in send.operands]
    if types != [value.type for value in listen.results]:
        raise broken(listen, f"it carries {', '.join(map(str, types))}")
