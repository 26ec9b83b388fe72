"""The verifier: what every graph must hold, before and after each pass.

Each stage of the compiler adds to what is legal: see `Stage`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

from placer.analysis.layout_rules import (
    Ways,
    by_rule,
    of_accumulation,
    of_gradient,
    replicated,
)
from placer.errors import PlacerError
from placer.graph.graph import Graph, Op
from placer.graph.kinds import (
    CONVERSIONS,
    COPIES,
    MESSAGES,
    RECIPES,
    is_computed,
    is_conversion,
    is_update,
)
from placer.layouts import Layout
from placer.passes.verify_types import Known, broken, check_types


class Stage(IntEnum):
    """How far a graph has come; each stage holds what those before it hold."""

    WRITTEN = 0
    """Names are defined once and before their use, and types are as declared."""
    DIFFERENTIATED = 1
    """No `minimize` is left, and what optimizer is still there updates something."""
    PLACED = 2
    """Every op has a place that the cluster has."""
    LAID_OUT = 3
    """Every value has a layout, and an op finds its operands where it runs, in the
    layouts that it takes."""
    TRANSFERRED = 4
    """No value crosses nodes but through send and listen_and_serv, which are pairs."""
    COPIED = 5
    """An op finds its operands on the devices that it runs on."""


def verify(graph: Graph, stage: Stage, known: Known | None = None) -> None:
    """Raise GraphError, with the op's text, at the first rule that is broken.

    `known` is what earlier calls, before other passes, have found right: of a graph that
    a pass leaves as it is, only what the next stage adds.
    """
    known = Known() if known is None else known
    held = known.stage if graph is known.graph else -1
    if held < Stage.WRITTEN:
        check_types(graph, known)
    if held < Stage.PLACED <= stage:
        first_at = {id(op.place): op for op in reversed(graph.ops)}
        for op in reversed(first_at.values()):
            _check_place(graph, op)
    if held < Stage.DIFFERENTIATED <= stage:
        _check_recipes(graph)
    if held < Stage.LAID_OUT <= stage or held < Stage.TRANSFERRED <= stage:
        _check_layouts(graph, stage, known)
    if held < Stage.TRANSFERRED <= stage:
        _check_messages(graph)
    if held < Stage.COPIED <= stage:
        _check_devices(graph)
    known.graph, known.stage = graph, max(held, stage)


def _check_recipes(graph: Graph) -> None:
    updated = {op.attrs["group"] for op in graph.ops if is_update(op.kind)}
    for op in graph.of_kind(*RECIPES):
        if op.kind == "minimize":
            raise broken(op, "it is not differentiated")
        if op.attrs["group"] not in updated:
            raise broken(op, "it updates nothing")


def _check_place(graph: Graph, op: Op) -> None:
    if op.place is None:
        raise broken(op, "it has no place")
    try:
        graph.nodes(op)
    except PlacerError as error:
        raise broken(op, error.message) from error


def _check_layouts(graph: Graph, stage: Stage, known: Known) -> None:
    producers = graph.producers
    layouts: dict[str, Layout] = {}
    for op in graph.ops:
        for value in op.results:
            if value.layout is None:
                raise broken(op, f"'{value.name}' has no layout")
            layouts[value.name] = value.layout
        converts = is_conversion(op.kind)
        if converts:
            _check_conversion(graph, op)
        if (converts and stage < Stage.TRANSFERRED) or op.kind in RECIPES:
            continue
        for name in op.operands:
            producer = producers[name]
            if producer.place is op.place:
                continue
            here, there = graph.nodes(op), graph.nodes(producer)
            if here == there:
                continue
            if op.kind == "accumulate" or converts or op.kind in MESSAGES:
                if not set(there) & set(here):
                    raise broken(op, f"'{name}' never reaches it")
                continue
            if not set(here) <= set(there):
                raise broken(op, f"'{name}' is on {there}, not on {here}")
        if is_computed(op) and not converts:
            have = [layouts[name] for name in op.operands]
            gives = [layouts[value.name] for value in op.results]
            _check_meaning(op, have, gives, _ways(graph, op, layouts, known))


def _check_meaning(
    op: Op, have: Sequence[Layout], gives: Sequence[Layout], ways: Ways
) -> None:
    """The layouts are those that the op needs and gives."""
    for name, found, wanted in zip(op.operands, have, ways[0], strict=True):
        if found != wanted:
            raise broken(op, f"'{name}' is {found}, and {op.kind} takes {wanted} there")
    for value, found, wanted in zip(op.results, gives, ways[1], strict=True):
        if found != wanted:
            raise broken(op, f"'{value.name}' is {found}, and {op.kind} gives {wanted}")


def _ways(graph: Graph, op: Op, layouts: Mapping[str, Layout], known: Known) -> Ways:
    if len(graph.nodes(op)) == 1:
        return replicated(op)
    if op.is_gradient:
        forward = graph.producers[op.operands[0]]
        needed = tuple([layouts[name] for name in forward.operands])
        types = [graph.tensor(name) for name in forward.operands]
        return of_gradient(op, forward, types, needed, layouts)
    if op.kind == "accumulate":
        return of_accumulation(op, layouts)
    types = [graph.tensor(name) for name in op.operands]
    have = [layouts[name] for name in op.operands]
    numbers = map(known.number, types)
    key = op.kind, known.written(op.attrs), len(op.results), *have, *numbers
    if key not in known.ways:
        known.ways[key] = by_rule(op, types, have)
    return known.ways[key]


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


def _check_devices(graph: Graph) -> None:
    made_on: dict[str, str] = {}
    for op in graph.ops:
        here = graph.devices(op)
        for name in op.operands:
            if op.kind not in COPIES and made_on[name] != here:
                raise broken(op, f"'{name}' is on {made_on[name]}, not on {here}")
        made_on.update((value.name, here) for value in op.results)


def _check_pair(graph: Graph, send: Op, listen: Op) -> None:
    if send.attrs["to"] != listen.place or listen.attrs["from"] != send.place:
        raise broken(listen, f"it goes from {send.place} to {send.attrs['to']}")
    types = [graph.values[name].type for name in send.operands]
    if types != [value.type for value in listen.results]:
        raise broken(listen, f"it carries {', '.join(map(str, types))}")
