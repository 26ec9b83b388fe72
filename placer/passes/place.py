"""place: give every op its place (the tables of design 4).

Needs a differentiated graph. Afterwards every op has a canonical place: what was
written, completed; gradients with their forward op, which stands with its gradient where
only that was placed; a parameter and its update where its optimizer stands. Inputs and constants are not sent, so each is read or made once
for every place that uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from placer.analysis.servers import Chosen, servers_of
from placer.graph.graph import Graph, Op, Value
from placer.graph.kinds import (
    SCALES,
    STRUCTURAL,
    is_optimizers,
    is_update,
)
from placer.passes.updates import owners
from placer.place import SERVER, Cluster, Place


def place(graph: Graph) -> Graph:
    graph = _with_gradients(graph)
    ops = [op for op in graph.ops if _is_forward(op)]
    servers = servers_of(graph, ops)
    forward = _forward_places(graph, ops, servers)
    everywhere = {**forward, **_gradient_places(graph, forward)}
    everywhere |= _accumulation_places(graph, everywhere)
    everywhere |= _optimizer_places(graph, everywhere)
    placed = [
        _chosen(op, servers.get(id(op))).at(everywhere[id(op)])
        for op in graph.ops
        if id(op) in everywhere
    ]
    return _one_copy_a_place(graph.with_ops(_split_norms(graph, placed)))


def _chosen(op: Op, chosen: Chosen | None) -> Op:
    """The op, which says why it is on its server, if that was chosen."""
    return op if chosen is None else op.with_attrs(server=chosen.attr())


def _with_gradients(graph: Graph) -> Graph:
    """Ops without a place take that of their gradient: what they keep for it does not
    move."""
    producers = graph.producers
    said = {
        id(producers[op.operands[0]]): op.place
        for op in graph.ops
        if op.is_gradient and op.place is not None
    }
    if not said:
        return graph
    return graph.with_ops(op.at(said.get(id(op), op.place)) for op in graph.ops)


def joined(cluster: Cluster, places: Iterable[Place]) -> Place | None:
    """The nodes of all of these, and the devices of the first; None when the nodes are
    of several kinds."""
    found = tuple(dict.fromkeys(places))
    if len(found) == 1:
        return found[0]
    if len({p.node for p in found}) != 1:
        return None
    ids = {at.node_id for p in found for at in cluster.resolve(p)}
    return cluster.canonical(replace(found[0], node_ids=tuple(sorted(ids))))


def first_node(cluster: Cluster, place: Place) -> Place:
    """The place's first node alone."""
    first = cluster.resolve(place)[0]
    return cluster.canonical(replace(place, node_ids=(first.node_id,)))


def complete(cluster: Cluster, place: Place, node: Place) -> Place:
    """A written place made whole: a missing node is `node`'s, a missing device is `cpu`
    on a server, else the best kind that the node declares."""
    if place.node is None:
        place = Place(node.node, node.node_ids, place.device, place.device_ids)
    if place.device is None:
        assert place.node is not None
        kinds = [kind for kind, _ in cluster.kind(place.node).devices]
        if place.node == SERVER and "cpu" in kinds:
            best = "cpu"
        else:
            best = next((kind for kind in kinds if kind != "cpu"), kinds[0])
        place = Place(place.node, place.node_ids, best, place.device_ids)
    return cluster.canonical(place)


def _forward_places(
    graph: Graph, forward: Iterable[Op], servers: Mapping[int, Chosen]
) -> dict[int, Place]:
    cluster = graph.cluster
    default = Place(cluster.default.name)
    places: dict[int, Place] = {}
    where: dict[str, Place] = {}
    cache: dict[tuple[int, int, int | None], Place] = {}  # of objects that ops keep
    for op in forward:
        near = next((where[o] for o in op.operands if o in where), default)
        server = servers[id(op)].server if id(op) in servers else None
        key = id(op.place), id(near), server
        if key not in cache:
            written = near if op.place is None else op.place
            if server is not None:
                written = replace(written, node_ids=(server,))
            cache[key] = complete(cluster, written, near)
        places[id(op)] = cache[key]
        for value in op.results:
            where[value.name] = cache[key]
    return places


def _is_forward(op: Op) -> bool:
    """Whether the op is of the model as written, and computed."""
    if op.kind in STRUCTURAL or is_optimizers(op.kind) or op.is_gradient:
        return False
    return op.kind != "accumulate" and (op.kind != "constant" or op.place is not None)


def _gradient_places(graph: Graph, forward: Mapping[int, Place]) -> dict[int, Place]:
    producers = graph.producers
    return {
        id(op): forward[id(producers[op.operands[0]])]
        for op in graph.ops
        if op.is_gradient
    }


def _accumulation_places(graph: Graph, known: Mapping[int, Place]) -> dict[int, Place]:
    """Sums of gradients: of a parameter where its gradients are, else with the value."""
    producers = graph.producers
    places: dict[int, Place] = {}
    for op in graph.of_kind("accumulate"):
        source = producers[op.attrs["of"]]
        if source.kind != "parameter":
            places[id(op)] = known[id(source)]
            continue
        users = [producers[name] for name in op.operands]
        parts = [known[id(user)] for user in users]
        # Parts on nodes of other kinds go to the first of these.
        same = [part for part in parts if part.node == parts[0].node]
        whole = joined(graph.cluster, same)
        assert whole is not None
        places[id(op)] = whole
    return places


def _optimizer_places(graph: Graph, known: Mapping[int, Place]) -> dict[int, Place]:
    """Updates, their parameters and stores; everything that follows another op."""
    cluster, producers = graph.cluster, graph.producers
    servers = next((kind.name for kind in cluster.kinds if kind.name == SERVER), None)
    places: dict[int, Place] = {}
    of_group: dict[int, Place] = {}
    computing = Place(cluster.default.name)

    def users(name: str) -> list[Place]:
        return [known[id(op)] for op in graph.uses.get(name, ()) if id(op) in known]

    for op in graph.ops:
        if is_update(op.kind):
            parameter = producers[op.operands[0]]
            used = users(parameter.name)
            near = Place(servers) if servers else used[0]
            written = op.place if op.place is not None else near
            if _is_one_server(cluster, written, used):  # nothing is sent
                written = Place.merge(used[0], replace(written, node=None))
            chosen = complete(cluster, written, near)
            places[id(op)] = places[id(parameter)] = chosen
            of_group.setdefault(op.attrs["group"], chosen)
    anywhere = first_node(cluster, complete(cluster, computing, computing))
    for op in graph.of_kind("record"):
        source = producers[op.operands[0]]
        if id(source) in known:
            at = known[id(source)]
        else:  # a parameter or a constant
            used = users(op.operands[0])
            at = first_node(cluster, used[0]) if used else anywhere
        places[id(op)] = cluster.in_memory(at)
    for op in graph.ops:
        if op.kind == "parameter" and id(op) not in places:
            found = users(op.name) or [anywhere]
            places[id(op)] = joined(cluster, found) or found[0]
        elif op.kind == "store":
            held, new = (producers[name] for name in op.operands)
            at = places[id(new)] if id(new) in places else known[id(new)]
            kept = places[id(held)]
            places[id(op)] = cluster.canonical(
                replace(at, device=kept.device, device_ids=kept.device_ids)
            )
        elif op.kind == "optimizer":
            default = Place(servers) if servers else computing
            places[id(op)] = of_group.get(
                op.attrs["group"], complete(cluster, op.place or default, default)
            )
        elif op.kind in ("read", "constant") and id(op) not in known:
            users_here = graph.uses.get(op.result.name, ())
            found = [places[id(u)] for u in users_here if u.kind == "record"]
            found = users(op.result.name) or found
            if found:
                places[id(op)] = found[0]
    owner = owners(graph)
    for op in graph.ops:
        if op.kind in SCALES:
            places[id(op)] = places[id(producers[op.operands[0]])]
        elif is_optimizers(op.kind) and not is_update(op.kind):
            own = owner[op.name if op.kind == "clip_value" else op.operands[0]]
            places[id(op)] = places[id(producers[own])]
    return places


def _is_one_server(cluster: Cluster, written: Place, used: Sequence[Place]) -> bool:
    """Whether an optimizer that may stand on any server is of a parameter that is used
    on one alone."""
    nodes = {node for place in used for node in cluster.nodes(place)}
    return (
        written.node == SERVER
        and written.node_ids is None
        and len(nodes) == 1
        and used[0].node == SERVER
    )


def _split_norms(graph: Graph, placed: list[Op]) -> list[Op]:
    """One sum of squares for each place that holds optimizers; one scale of them all."""
    where = {op.name: op.place for op in placed if op.kind == "parameter"}
    owner = owners(graph)
    parts: dict[str, list[Op]] = {}
    out: list[Op] = []
    for op in placed:
        if op.kind == "sum_of_squares":
            groups: dict[Place, list[str]] = {}
            for name in op.operands:
                at = where[owner[name]]
                assert at is not None
                groups.setdefault(at, []).append(name)
            names = [op.name] if len(groups) == 1 else None
            for i, (at, gradients) in enumerate(groups.items()):
                name = names[0] if names else f"{op.name}.{i}"
                value = Value(name, op.result.type)
                part = replace(
                    op, operands=tuple(gradients), results=(value,), place=at
                )
                parts.setdefault(op.name, []).append(part)
            out.extend(parts[op.name])
        elif op.kind in SCALES:
            squares = [part for name in op.operands for part in parts[name]]
            at = squares[0].place
            assert at is not None
            if any(part.place != at for part in squares):
                at = first_node(graph.cluster, at)
            out.append(replace(op, operands=tuple(s.name for s in squares), place=at))
        else:
            out.append(op)
    return out


def _one_copy_a_place(graph: Graph) -> Graph:
    """Read an input once for all nodes of each place that uses it; make a constant once
    for each such place."""
    copies: dict[str, dict[Place, str]] = {}
    sources = {
        op.result.name: op
        for op in graph.ops
        if op.kind == "read" or (op.kind == "constant" and not op.operands)
    }

    def where(source: Op, user: Op) -> Place:
        assert user.place is not None
        if source.kind == "read":
            return graph.cluster.in_memory(user.place)
        return user.place

    for op in graph.ops:
        for name in op.operands:
            if name in sources:
                at = where(sources[name], op)
                found = copies.setdefault(name, {})
                found.setdefault(at, f"{name}.{len(found)}" if found else name)
    out: list[Op] = []
    for op in graph.ops:
        if op.results and op.results[0].name in sources:
            for at, name in copies.get(op.results[0].name, {}).items():
                value = replace(op.results[0], name=name)
                out.append(replace(op, results=(value,), place=at))
            continue
        if any(name in copies for name in op.operands):
            operands = tuple(
                copies[name][where(sources[name], op)] if name in copies else name
                for name in op.operands
            )
            op = op.of(operands, op.results)
        out.append(op)
    return graph.with_ops(out)
