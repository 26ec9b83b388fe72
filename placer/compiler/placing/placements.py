"""Turns a candidate into places of ops, and a model into one with these places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.model import Model
from placer.compiler.placing.candidates import Candidate
from placer.compiler.placing.from_model import ModelProblem
from placer.place import SERVER, Cluster, NodeKind, Place


@dataclass(frozen=True, slots=True)
class Placement:
    """Places of forward ops. Everything else follows the rules of the place pass.

    Attributes:
        places: the place of each op that moves, by name.
        counts: the number of nodes of each kind; 0 if none of them is used.
        stages: the names of the ops of each stage, from the first stage to the last.
        nodes: the numbers of the nodes of each stage.
    """

    places: Mapping[str, Place]
    counts: Mapping[str, int]
    stages: tuple[tuple[str, ...], ...]
    nodes: tuple[tuple[int, ...], ...]


def place_candidate(model: Model, found: ModelProblem, one: Candidate) -> Placement:
    """Return the placement of a candidate. Stages are on the nodes in their order.

    An op that has a device on nodes of the same kind keeps it; other ops get the default
    device. Kinds of nodes that only ran ops that move are not used.

    Args:
        model: the model as written.
        found: its problem.
        one: a candidate of the problem.

    Example:
        >>> placement = place_candidate(model, found, candidates(found.problem)[0])
        >>> str(placement.places["h1"]), placement.counts
        ('/node:worker/cpu', {'worker': 1})
    """
    graph = model.graph
    position = {op.name: i for i, op in enumerate(graph.ops)}
    nodes: list[tuple[int, ...]] = []
    for stage in one.stages:
        first = sum(map(len, nodes))
        nodes.append(tuple(range(first, first + stage.replicas)))
    stages = tuple(
        tuple(
            sorted(
                (name for group in one.groups_of(stage) for name in found.ops[group]),
                key=position.__getitem__,
            )
        )
        for stage in one.stages
    )
    moved = {name for ops in stages for name in ops}
    counts = _counts(graph, found.kind, one.devices, moved)
    cluster = _with_counts(graph.cluster, counts)
    by_name = {op.name: op for op in graph.ops}
    places = {
        name: _place(cluster, found.kind, ids, by_name[name].place)
        for ids, ops in zip(nodes, stages, strict=True)
        for name in ops
    }
    return Placement(places, counts, stages, tuple(nodes))


def with_placement(model: Model, placement: Placement) -> Model:
    """Return a model as written with other places, and without nodes that nothing uses."""
    graph = model.graph
    cluster = _with_counts(graph.cluster, placement.counts)
    count = len(placement.stages)
    why = {
        name: f"chosen: stage {number} of {count}, {ops[0]} to {ops[-1]}"
        for number, ops in enumerate(placement.stages, 1)
        for name in ops
    }
    ops = tuple(
        op.with_place(placement.places[op.name], why[op.name])
        if op.name in placement.places
        else op
        for op in graph.ops
    )
    kinds = {kind.name for kind in cluster.kinds}
    memory = {key: value for key, value in model.memory.items() if key[0] in kinds}
    return replace(model, graph=replace(graph, cluster=cluster, ops=ops), memory=memory)


def _place(
    cluster: Cluster, kind: str, ids: tuple[int, ...], written: Place | None
) -> Place:
    """Return a place on these nodes, with the written devices if it can keep them."""
    if written is None or written.node not in (None, kind):
        return cluster.complete(Place(kind, ids))
    return cluster.complete(Place(kind, ids, written.device, written.device_ids))


def _counts(
    graph: Graph, chosen: str, number: int, moved: set[str]
) -> Mapping[str, int]:
    """Return the number of nodes of each kind that a placement needs."""
    kept = [*_kept_places(graph, moved)]
    used = {place.node for place in kept} | {SERVER}
    counts = {
        kind.name: kind.count if kind.name in used else 0
        for kind in graph.cluster.kinds
    }
    named = [
        max(place.node_ids) + 1
        for place in kept
        if place.node == chosen and isinstance(place.node_ids, tuple)
    ]
    counts[chosen] = max(number, *named, 1)
    return counts


def _kept_places(graph: Graph, moved: set[str]) -> Iterator[Place]:
    """Yield the written places of all that does not move."""
    for op in graph.ops:
        if op.place is not None and not _moves(op, moved):
            yield op.place


def _moves(op: Op, moved: set[str]) -> bool:
    return op.is_computed and op.name in moved


def _with_counts(cluster: Cluster, counts: Mapping[str, int]) -> Cluster:
    """Return the cluster with these numbers of nodes."""
    return Cluster(
        tuple(
            _with_count(kind, counts[kind.name])
            for kind in cluster.kinds
            if counts[kind.name]
        )
    )


def _with_count(kind: NodeKind, count: int) -> NodeKind:
    if kind.threads is None:
        return structs.replace(kind, count=count)
    return structs.replace(
        kind, count=count, threads=kind.threads * count // kind.count
    )
