"""The loads of movable groups, from which a search chooses cuts before it lowers them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import NamedTuple

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.placing.costs import Costs, Times
from placer.compiler.placing.functions import Functions
from placer.compiler.placing.pieces import group_of, is_timed, pieces_of
from placer.place.types import TensorType


@dataclass(slots=True)
class GroupLoad:
    """The median times of a group, in nanoseconds.

    Attributes:
        forward: the time of a microbatch forward, by device kind.
        backward: the time of its gradients, by device kind, with their sums over
            microbatches.
        once: the time of the updates of its parameters in a step.
    """

    forward: dict[str, int] = field(default_factory=dict)
    backward: dict[str, int] = field(default_factory=dict)
    once: int = 0


class FixedLoads(NamedTuple):
    """The median times that do not depend on the ops of a stage, in nanoseconds.

    Attributes:
        per_message: a message, for the sender and again for the receiver.
        per_megabyte: 1,000,000 bytes of it.
        stage: what each microbatch costs a stage: two tasks and two calls.
        update: what a step costs a node that updates parameters.
    """

    per_message: int
    per_megabyte: int
    stage: int
    update: int


def group_loads(
    graph: Graph,
    costs: Costs,
    groups: Mapping[str, str],
    kinds: Collection[str] = ("cpu",),
) -> tuple[dict[str, GroupLoad], tuple[str, ...]]:
    """Return the load of each group, and the groups without an entry in the cost file.

    The sums and differences of values between groups belong to no group.

    Args:
        graph: the step after the last pass, in which one node runs all groups.
        costs: the costs.
        groups: the group of each forward op by name; an op that is missing is a group of
            its own.
        kinds: the device kinds; the loads are those of one device of each kind.

    Example:
        loads, missing = group_loads(step, costs, groups, ("cpu", "gpu"))
    """
    node = next(graph.nodes(op)[0] for op in graph.ops if is_timed(op))
    ops: dict[tuple[str, bool], list[Op]] = {}
    for op in graph.ops:
        if is_timed(op):
            key = group_of(graph, op, groups), op.is_gradient
            ops.setdefault(key, []).append(op)
    functions = Functions(graph, costs, groups)
    loads: dict[str, GroupLoad] = {}
    for (group, is_gradient), of_group in ops.items():
        load = loads.setdefault(group, GroupLoad())
        times = load.backward if is_gradient else load.forward
        (piece,) = pieces_of(graph, of_group, node, groups, functions.known)
        for kind in kinds:
            times[kind] = _middle(functions.times_of_piece(piece.on(kind)))
    for op in graph.ops:
        if op.structure.update == "value":
            _add_update(graph, costs, op, loads[_user(graph, op, groups)])
    return loads, tuple(sorted(functions.missing))


def fixed_loads(costs: Costs, rule: str) -> FixedLoads:
    """Return the loads next to those of groups; `rule` is that of the optimizer."""
    ends = "send", "receive"
    small = sum(_middle(costs.times(end, 0)) for end in ends)
    large = sum(_middle(costs.times(end, 1_000_000)) for end in ends)
    calls = ("task", 1), ("call", 1)
    return FixedLoads(
        small // 2,
        (large - small) // 2,
        2 * sum(_middle(costs.times(*each)) for each in calls),
        _middle(costs.times(costs.entry_of_update(rule), 0)),
    )


def _add_update(graph: Graph, costs: Costs, op: Op, load: GroupLoad) -> None:
    """Add the update of a parameter, and the sums of its gradient over microbatches."""
    kind = graph.tensor_type(op.operands[0])
    if kind.is_keyed:
        return
    entry, elements = costs.entry_of_update(op.kind), kind.numel()
    load.once += _middle(costs.times(entry, elements)) - _middle(costs.times(entry, 0))
    if graph.microbatches > 1:
        for name, size, base in (
            ("sum of microbatches: arrays", 1, 0),
            ("sum of microbatches: bytes", kind.nbytes(), 0),
        ):
            more = _middle(costs.times(name, size)) - _middle(costs.times(name, base))
            for each in load.backward:
                load.backward[each] += more


def _user(graph: Graph, update: Op, groups: Mapping[str, str]) -> str:
    """Return the group that uses an updated parameter."""
    name = update.operands[0]
    users = [op for op in graph.uses[name] if is_timed(op)]
    while not users:  # blocks are joined first
        (name,) = (
            op.results[0].name
            for op in graph.uses[name]
            if op.structure.aliases and isinstance(op.results[0].type, TensorType)
        )
        users = [op for op in graph.uses[name] if is_timed(op)]
    return group_of(graph, users[0], groups)


def _middle(times: Times) -> int:
    return median_low(times)
