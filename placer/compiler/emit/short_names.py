"""Shortens the names of gradients and sums."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from placer.compiler.graph.graph import Graph
from placer.compiler.graph.structural_ops import (
    MOVING_KINDS,
    ROW_ESTIMATE,
    is_conversion,
)
from placer.compiler.schedule.units import Unit

_ENDINGS = re.compile(r"\.(sum|range|from_\w+)$")
_DROPPED = re.compile(rf"clipped|{ROW_ESTIMATE}|part\d+")


def shorten_values(graph: Graph, units: Iterable[Unit]) -> Mapping[str, str]:
    """Return clearer names for gradients and received sums.

    A gradient `x.grad.clipped` becomes `x.grad`, unless another value of the units would
    have the same name. A sum that several nodes sent becomes `x.sum`, and a node's range of
    it `x.range`. A term `x.grad.0` of a gradient, from the op `h1`, becomes `x.grad.from_h1`.
    """
    short = {
        value.name: _shorten(graph, value.name)
        for unit in units
        for op in unit.ops
        if op.kind != "accumulate" or len(op.operands) > 1
        for value in op.results
    }
    uses = Counter(_without_moves(each) for each in short.values())
    return {
        name: each
        for name, each in short.items()
        if each != name
        and (uses[_without_moves(each)] == 1 or _ENDINGS.search(each) is not None)
    }


def is_sum_of_nodes(graph: Graph, name: str) -> bool:
    """Whether a value is received as the sum of values that several nodes sent."""
    while True:
        op = graph.producers[name]
        index = graph.result_indices[name]
        if op.received_edge is not None:
            send = graph.sends[op.received_edge]
            name = send.operands[index]
            is_partial = graph.values[name].layout == "P"
            if send.exchange is not None:
                return send.exchange.moves == "sums"
            if is_partial and len(graph.nodes(send)) > 1:
                return True
        elif op.structure.copies:
            name = op.operands[index]
        elif is_conversion(op.kind):
            name = op.operands[0]
        else:
            return False


def _shorten(graph: Graph, name: str) -> str:
    parts = name.split(".")
    if is_sum_of_nodes(graph, name):
        parts = [part for part in parts if part not in MOVING_KINDS and part != "sum"]
        parts.append("range" if graph.values[name].layout == "F" else "sum")
    if "grad" not in parts:
        return ".".join(parts)
    at = parts.index("grad")
    term = graph.producers.get(".".join(parts[: at + 2]))
    is_term = len(parts) > at + 1 and parts[at + 1].isdecimal()
    if is_term and term is not None and term.is_gradient:
        consumer = term.operands[0].rpartition(".")[0].replace(".", "_")
        parts[at + 1] = f"from_{consumer}"
    rest = [part for part in parts[at:] if not _DROPPED.fullmatch(part)]
    return ".".join([*parts[:at], *rest])


def _without_moves(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in MOVING_KINDS)
