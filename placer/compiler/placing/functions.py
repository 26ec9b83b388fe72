"""The times of the jitted functions of a step: their pieces, and the call itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from placer.compiler.graph.flops import FlopsCache
from placer.compiler.graph.graph import Graph
from placer.compiler.placing.costs import Costs, Times, add
from placer.compiler.placing.pieces import Piece, elementwise_elements, pieces_of
from placer.compiler.schedule.units import Unit
from placer.place.node_kinds import CPU
from placer.place.types import ResidualType

CALL_ELSEWHERE: Final = "call on another device"
"""The entry of a call of a device that is no processor."""


@dataclass(frozen=True, slots=True)
class FunctionTimes:
    """The times of one run of a function.

    Attributes:
        groups: the groups of its ops.
        compute: the times of its ops.
        call: the times of the call, its arguments and its results.
    """

    groups: tuple[str, ...]
    compute: Times
    call: Times


@dataclass
class Functions:
    """The times of functions, by the entries of a cost file.

    Attributes:
        graph: the graph after the last pass.
        costs: the costs.
        groups: the group of each forward op by name; an op that is missing is a group of
            its own.
        missing: the groups so far that had no entry in the cost file.
        known: the known FLOPs.
    """

    graph: Graph
    costs: Costs
    groups: Mapping[str, str]
    missing: set[str] = field(default_factory=set)
    known: FlopsCache = field(default_factory=FlopsCache)

    def times_of(self, unit: Unit, node: str) -> FunctionTimes | None:
        """Return the times of a computed unit on a node; None if it needs no function."""
        if not unit.outputs or all(op.kind == "constant" for op in unit.ops):
            return None
        pieces = pieces_of(self.graph, unit.ops, node, self.groups, self.known)
        elements = elementwise_elements(self.graph, unit.ops, node)
        if not pieces and not elements:
            return None
        return FunctionTimes(
            tuple(dict.fromkeys(piece.group for piece in pieces)),
            add(
                self.costs.times("elementwise", elements),
                *(self.times_of_piece(piece) for piece in pieces),
            ),
            call_times(self.graph, unit, self.costs),
        )

    def times_of_piece(self, piece: Piece) -> Times:
        """Return the times of a piece: by its entry, by entries of its parts, or by its
        declared FLOPs. In the last case its group becomes `missing`."""
        costs = self.costs
        for names in ((piece.name,), *piece.parts):
            if all(map(costs.has, names)):
                return add(*(costs.times(name, piece.rows) for name in names))
        if costs.machine is not None:
            self.missing.add(piece.group)
        return costs.of_flops(piece.flops, piece.ops)


def call_times(graph: Graph, unit: Unit, costs: Costs) -> Times:
    """Return the times of the call of a unit, by its arrays."""
    on_host, on_device = _count_inputs(graph, unit.inputs)
    is_elsewhere = not graph.devices(unit.ops[0]).startswith(f"{CPU}:")
    return add(
        costs.times(CALL_ELSEWHERE if is_elsewhere else "call", 1),
        costs.times("call: arguments in host memory", on_host),
        costs.times("call: arguments on a device", on_device),
        costs.times("call: results", count_arrays(graph, unit.outputs)),
    )


def count_arrays(graph: Graph, names: Iterable[str]) -> int:
    """Return how many arrays values have; a residual has several."""
    types = (graph.values[name].type for name in names)
    return sum(
        len(each.parts) if isinstance(each, ResidualType) else 1 for each in types
    )


def _count_inputs(graph: Graph, names: Iterable[str]) -> tuple[int, int]:
    """Return how many arrays of a function's inputs are in host memory, and on devices."""
    on_host = on_device = 0
    for name in names:
        op = graph.producers[name]
        count = count_arrays(graph, (name,))
        if op.is_computed or op.structure.copies:
            on_device += count
        else:
            on_host += count
    return on_host, on_device
