"""Lowers candidates: their graphs after all passes, with the memory of each device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from placer.compiler.graph.model import Model
from placer.compiler.memory.node_memory import MemoryEstimate
from placer.compiler.passes import LoweredModel
from placer.compiler.placing.candidates import Candidate
from placer.compiler.placing.from_model import ModelProblem
from placer.compiler.placing.placements import (
    Placement,
    place_candidate,
    with_placement,
)
from placer.compiler.schedule.schedule import Schedule, make_schedule
from placer.compiler.schedule.units import LoweredGraph
from placer.errors import PlacerError
from placer.place import NodeId
from placer.plan.plan import Table

Lower = Callable[[Model], tuple[Model, LoweredModel, Mapping[str, tuple[Table, ...]]]]
"""Runs all passes: returns the model, its graphs, and the tables of each node."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A model after all passes.

    Attributes:
        model: the model with its places.
        step: the graph of a training step.
        schedule: the tasks of each node in a step.
        memory: the bytes of values and tables on each device in use, by node.
        placement: the places that were chosen; None for the model as written.
        candidate: the candidate of the placement, if any.
    """

    model: Model
    step: LoweredGraph
    schedule: Schedule
    memory: Mapping[NodeId, Mapping[str, int]]
    placement: Placement | None = None
    candidate: Candidate | None = None

    @property
    def largest_memory(self) -> int:
        """The bytes of the device that holds most."""
        return max((max(each.values()) for each in self.memory.values()), default=0)


@dataclass(frozen=True, slots=True)
class Refused:
    """A candidate that cannot be used, and why."""

    candidate: Candidate
    placement: Placement
    why: str


def lower_placed(
    model: Model,
    lower: Lower,
    placement: Placement | None = None,
    candidate: Candidate | None = None,
) -> Lowered:
    """Return a model after all passes.

    Args:
        model: the model as written.
        lower: runs the passes; `placer.compiler.driver.lower_to_tables`.
        placement: the places; by default those of the model.
        candidate: the candidate of the placement.

    Raises:
        PlacerError: the model cannot be lowered with these places.
    """
    placed = model if placement is None else with_placement(model, placement)
    placed, graphs, tables = lower(placed)
    step = LoweredGraph(graphs.step, graphs.step.batch, "step")
    schedule = make_schedule(graphs.step, model.settings.train.schedule)
    estimate = MemoryEstimate(step, schedule)
    memory = {
        node: estimate.device_bytes(node, tables[node])
        for node in graphs.step.cluster.all_nodes()
    }
    used = {node: each for node, each in memory.items() if each}
    return Lowered(placed, step, schedule, used, placement, candidate)


def lower_best(
    model: Model,
    found: ModelProblem,
    candidates: Sequence[Candidate],
    lower: Lower,
    count: int = 8,
) -> tuple[list[Lowered], list[Refused]]:
    """Return the first candidates that can be lowered and fit, and those that cannot.

    Args:
        model: the model as written.
        found: its problem.
        candidates: candidates, the best first; see `choose`.
        lower: runs the passes; `placer.compiler.driver.lower_to_tables`.
        count: how many to return at most.
    """
    lowered: list[Lowered] = []
    refused: list[Refused] = []
    for candidate in candidates:
        if len(lowered) == count:
            break
        placement = place_candidate(model, found, candidate)
        try:
            one = lower_placed(model, lower, placement, candidate)
        except PlacerError as error:
            refused.append(Refused(candidate, placement, str(error)))
            continue
        if too_much := _too_much(one):
            refused.append(Refused(candidate, placement, too_much))
        else:
            lowered.append(one)
    return lowered, refused


def _too_much(one: Lowered) -> str:
    """Return which device lacks memory, or nothing."""
    for node, devices in one.memory.items():
        for device, nbytes in devices.items():
            limit = one.model.memory.get((node.kind, device.partition(":")[0]))
            if limit is not None and nbytes > limit.nbytes:
                return f"{device} of {node} needs {nbytes:,} bytes of {limit.nbytes:,}"
    return ""
