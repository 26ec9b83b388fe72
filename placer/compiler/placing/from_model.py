"""Makes the problem of places of a model: its groups with their times, bytes and flows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.model import Model
from placer.compiler.graph.stored_bytes import find_update, stored_bytes
from placer.compiler.graph.structural_ops import is_update
from placer.compiler.passes.gradients.differentiate import differentiate
from placer.compiler.passes.train import train
from placer.compiler.placing.groups import Movable
from placer.compiler.placing.problem import (
    MEGABYTE,
    Devices,
    Flow,
    Group,
    Link,
    Problem,
)
from placer.place import SERVER, Place


@dataclass(frozen=True, slots=True)
class Work:
    """What a group runs in a training step, in program order.

    Attributes:
        graph: the step before passes place it, with gradients and updates.
        group: the name of the group.
        rows: the rows of a microbatch.
        forward: the forward ops. Ops only of evaluations and predictions are not among them.
        backward: the gradient ops, and the sums of gradients of one value.
        updates: the updates that run with the group.
    """

    graph: Graph
    group: str
    rows: int
    forward: tuple[Op, ...]
    backward: tuple[Op, ...]
    updates: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """Nanoseconds: of a microbatch forward and backward, and once in a step."""

    forward: int
    backward: int = 0
    once: int = 0


TimesOf = Callable[[Work, str], Times]
"""Returns the times of the work of a group on a kind of device, such as `cpu`."""

_SMALL: Final = 100
"""A group joins its producer if it takes less than this part of an equal share of all work."""


@dataclass(frozen=True, slots=True)
class ModelProblem:
    """The problem of a model.

    Attributes:
        problem: the groups that move.
        ops: the names of the ops of each group of the problem. Small groups are joined.
        kind: the kind of the nodes that are chosen.
    """

    problem: Problem
    ops: tuple[tuple[str, ...], ...]
    kind: str


def problem_of(
    model: Model,
    groups: Sequence[Movable],
    times: TimesOf,
    *,
    link: Link,
    call: int = 0,
    update: int = 0,
    kind: str | None = None,
) -> ModelProblem:
    """Return the problem of placing the free groups of a model.

    A group that only reshapes or masks what another computes joins it, since a cut between
    them would not balance stages.

    Args:
        model: the model as written.
        groups: its groups, from `movable_groups`.
        times: returns the times of a group.
        link: the cost of messages between nodes.
        call: nanoseconds that a microbatch costs each node, whatever runs there.
        update: nanoseconds that a step costs each node that updates parameters.
        kind: the kind of the nodes to choose; by default the first that is not `ps`.

    Raises:
        GraphError: the model cannot be differentiated.
        PlaceError: no node is of this kind.
    """
    graph = train(differentiate(model.graph))
    cluster = graph.cluster
    nodes = cluster.default if kind is None else cluster.kind(kind)
    place = cluster.complete(Place(nodes.name))
    device = place.device
    assert device is not None
    # The devices of a node divide rows, but each has a copy of the parameters.
    shares = len(cluster.device_ids(place))
    free = [group for group in groups if group.is_free]
    rows = graph.batch // graph.microbatches
    works, index = _works(graph, free, rows)
    near, away = _stored(graph, free)
    made = []
    for number, (group, work) in enumerate(zip(free, works, strict=True)):
        of_group = times(work, device)
        # Parameters that are updated elsewhere come once in a step, and gradients go.
        moved = -(-2 * away[number] * link.per_megabyte // MEGABYTE)
        made.append(
            Group(
                group.name,
                {nodes.name: of_group.forward},
                {nodes.name: of_group.backward},
                of_group.once + moved,
                *near[number],
                -(-_held(graph, work, rows) // shares),
            )
        )
    flows = _flows(graph, works, index, rows)
    edges = _edges(model.graph, index)
    limit = model.memory.get((nodes.name, device))
    devices = Devices(nodes.name, nodes.count, None if limit is None else limit.nbytes)
    problem = Problem(
        made,
        flows,
        edges,
        (devices,),
        link,
        tuple(r for r in range(1, nodes.count + 1) if rows % r == 0),
        graph.microbatches,
        call,
        update if any(group.parameters for group in made) else 0,
        holds_all=model.settings.train.schedule != "1f1b",
    )
    return _join_small(ModelProblem(problem, tuple(g.ops for g in free), nodes.name))


def _works(
    graph: Graph, groups: Sequence[Movable], rows: int
) -> tuple[list[Work], Mapping[str, int]]:
    """Return the work of each group, and the group of each forward op by name."""
    index = {name: i for i, group in enumerate(groups) for name in group.ops}
    owner = {name: i for i, group in enumerate(groups) for name in group.parameters}
    parts: list[tuple[list[Op], list[Op], list[Op]]] = [([], [], []) for _ in groups]
    for op in graph.ops:
        if is_update(op.kind):
            parameter = op.operands[0]
            if parameter in owner and _is_here(graph, op):
                parts[owner[parameter]][2].append(op)
        elif op.name in index and not op.is_gradient:
            parts[index[op.name]][0].append(op)
        elif (number := _backward_group(graph, op, index)) is not None:
            parts[number][1].append(op)
    works = [
        Work(graph, group.name, rows, *map(tuple, part))
        for group, part in zip(groups, parts, strict=True)
    ]
    return works, index


def _backward_group(graph: Graph, op: Op, index: Mapping[str, int]) -> int | None:
    """Return the group of an op of the backward part, if it moves."""
    if op.is_gradient:
        return index.get(graph.producers[op.operands[0]].name)
    if op.kind == "accumulate":
        source = graph.producers[op.attrs["of"]]
        if source.name in index:
            return index[source.name]
        # The gradients of a parameter are all of one group.
        first = graph.producers[op.operands[0]]
        return _backward_group(graph, first, index)
    return None


def _is_here(graph: Graph, update: Op) -> bool:
    """Whether an update runs where its parameter is used."""
    has_servers = any(kind.name == SERVER for kind in graph.cluster.kinds)
    return update.place is None and not has_servers


def _stored(
    graph: Graph, groups: Sequence[Movable]
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the bytes of parameters that replicas exchange, the bytes stored with them, and
    the bytes of parameters that are updated at other nodes, for each group."""
    sizes = stored_bytes(graph)
    near, away = [], []
    for group in groups:
        exchanged = stored = elsewhere = 0
        for name in group.parameters:
            nbytes = graph.tensor_type(name).nbytes(1)
            update = find_update(graph, name)
            if update is None:
                stored += nbytes
            elif _is_here(graph, update):
                exchanged += nbytes
                stored += sizes[name] + nbytes
            else:
                elsewhere += nbytes
                stored += 2 * nbytes
        near.append((exchanged, stored))
        away.append(elsewhere)
    return near, away


def _held(graph: Graph, work: Work, rows: int) -> int:
    """Return the bytes of a microbatch that the group computes forward, and that gradient
    ops use."""
    return sum(
        value.type.nbytes(rows)
        for op in work.forward
        for value in op.results
        if any(user.is_gradient for user in graph.uses.get(value.name, ()))
    )


def _flows(
    graph: Graph, works: Sequence[Work], index: Mapping[str, int], rows: int
) -> list[Flow]:
    """Return the values and gradients that groups use of each other."""
    group_of: dict[Op, int] = {}
    for number, work in enumerate(works):
        group_of.update((op, number) for op in (*work.forward, *work.backward))
    flows = []
    for op, source in group_of.items():
        for value in op.tensors:
            users = graph.uses.get(value.name, ())
            found = {group_of[user] for user in users if user in group_of} - {source}
            if found:
                targets = tuple(sorted(found))
                flows.append(Flow(source, targets, value.type.nbytes(rows)))
    return flows


def _edges(graph: Graph, index: Mapping[str, int]) -> list[tuple[int, int]]:
    """Return the groups that use each other's values forward, also outside of a step."""
    edges = {
        (index[producer], index[op.name])
        for op in graph.ops
        if op.name in index
        for name in op.operands
        if (producer := graph.producers[name].name) in index
    }
    return sorted((a, b) for a, b in edges if a != b)


def _join_small(model: ModelProblem) -> ModelProblem:
    """Join each small group with a single producer to it, unless a cut between them would
    send fewer bytes than one behind it."""
    problem, kind = model.problem, model.kind
    groups = problem.groups
    share = sum(group.time(kind) for group in groups) // problem.devices[0].count
    pairs = {*problem.edges}
    producers: list[set[int]] = [set() for _ in groups]
    for a, b in problem.edges:
        producers[b].add(a)
    joined = [*range(len(groups))]
    for number, group in enumerate(groups):
        small = group.time(kind) * _SMALL < share and not group.stored
        if small and len(producers[number]) == 1:
            (producer,) = producers[number]
            before, behind = (_width(problem, pairs, number, b) for b in (True, False))
            if before >= behind:
                joined[number] = producer
    for number in range(len(groups)):
        while joined[joined[number]] != joined[number]:
            joined[number] = joined[joined[number]]
    return _merge(model, joined)


def _width(
    problem: Problem, pairs: Collection[tuple[int, int]], group: int, before: bool
) -> int:
    """Return the bytes that a group sends to or gets from groups before it, or after it."""
    total = 0
    for flow in problem.flows:
        ends = [(flow.source, target) for target in flow.targets]
        if flow.source == group:
            back = any((b, a) in pairs for a, b in ends)
            total += flow.nbytes if back == before else 0
        elif group in flow.targets:
            forward = (flow.source, group) in pairs
            total += flow.nbytes if forward == before else 0
    return total


def _merge(model: ModelProblem, joined: Sequence[int]) -> ModelProblem:
    """Return the problem whose groups are the sets of groups that were joined to one."""
    problem, kind = model.problem, model.kind
    firsts = sorted({*joined})
    number = {first: i for i, first in enumerate(firsts)}
    of = [number[each] for each in joined]
    members: list[list[int]] = [[] for _ in firsts]
    for group, new in enumerate(of):
        members[new].append(group)

    flows = []
    for flow in problem.flows:
        source = of[flow.source]
        if targets := tuple(sorted({of[each] for each in flow.targets} - {source})):
            flows.append(Flow(source, targets, flow.nbytes))
    edges = sorted({(of[a], of[b]) for a, b in problem.edges if of[a] != of[b]})
    ops = tuple(
        tuple(name for group in numbers for name in model.ops[group])
        for numbers in members
    )
    groups = [
        _sum(problem.groups[first].name, [problem.groups[i] for i in numbers], kind)
        for first, numbers in zip(firsts, members, strict=True)
    ]
    return replace(
        model,
        problem=replace(problem, groups=groups, flows=flows, edges=edges),
        ops=ops,
    )


def _sum(name: str, parts: Sequence[Group], kind: str) -> Group:
    return Group(
        name,
        {kind: sum(each.forward[kind] for each in parts)},
        {kind: sum(each.backward[kind] for each in parts)},
        sum(each.once for each in parts),
        sum(each.parameters for each in parts),
        sum(each.stored for each in parts),
        sum(each.activations for each in parts),
    )
