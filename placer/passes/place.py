"""place: give every op its place (the tables of design 4).

Needs a differentiated graph. Afterwards every op has a canonical place: what was
written, completed; gradients with their forward op; a parameter and its update where
its optimizer stands. Inputs and constants are not sent, so each is read or made once
for every place that uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from placer.errors import GraphError
from placer.graph.graph import Graph, Op, Value
from placer.graph.structure import (
    ENTRIES,
    SCALES,
    STRUCTURAL,
    is_optimizers,
    is_update,
)
from placer.passes.servers import servers_of
from placer.passes.updates import owners
from placer.place import SERVER, Cluster, Location, Place


def place(graph: Graph) -> Graph:
    forward = _forward_places(graph)
    everywhere = {**forward, **_gradient_places(graph, forward)}
    everywhere |= _accumulation_places(graph, everywhere)
    everywhere |= _optimizer_places(graph, everywhere)
    placed = [op.at(everywhere[id(op)]) for op in graph.ops if id(op) in everywhere]
    _check_devices(graph, placed)
    return _one_copy_a_place(graph.with_ops(_split_norms(graph, placed)))


def joined(cluster: Cluster, places: Iterable[Place]) -> Place | None:
    """The smallest place that holds all of these; None when they are of several node
    or device kinds."""
    found = tuple(dict.fromkeys(places))
    if len(found) == 1:
        return found[0]
    if len({(p.node, p.device) for p in found}) != 1:
        return None
    ids = {at.node_id for p in found for at in cluster.resolve(p)}
    whole = Place(found[0].node, tuple(sorted(ids)), found[0].device)
    return cluster.canonical(whole)


def first_host(cluster: Cluster, place: Place) -> Place:
    """The place's first host alone."""
    first = cluster.resolve(place)[0]
    return cluster.canonical(Place(first.node, (first.node_id,), first.device))


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


def _forward_places(graph: Graph) -> dict[int, Place]:
    cluster = graph.cluster
    default = Place(cluster.default.name)
    forward = [op for op in graph.ops if _is_forward(op)]
    server_of = servers_of(graph, forward)
    places: dict[int, Place] = {}
    where: dict[str, Place] = {}
    cache: dict[tuple[int, int, int | None], Place] = {}  # of objects that ops keep
    for op in forward:
        near = next((where[o] for o in op.operands if o in where), default)
        server = server_of.get(id(op))
        key = id(op.place), id(near), server
        if key not in cache:
            written = near if op.place is None else op.place
            if server is not None:
                written = replace(written, node_ids=(server,))
            cache[key] = complete(cluster, written, near)
            _check_legal(graph, op, cache[key])
        places[id(op)] = cache[key]
        for value in op.results:
            where[value.name] = cache[key]
    return places


def _is_forward(op: Op) -> bool:
    """Whether the op is of the model as written, and computed."""
    if op.kind in STRUCTURAL or is_optimizers(op.kind) or op.is_gradient:
        return False
    return op.kind != "accumulate" and (op.kind != "constant" or op.place is not None)


def _check_legal(graph: Graph, op: Op, place: Place) -> None:
    locations = graph.cluster.resolve(place)
    hosts = graph.cluster.hosts(place)
    if len(locations) > len(hosts):
        raise GraphError(
            f"'{op.name}' ({op.kind}) runs on more than one device of {hosts[0]}: "
            f"{place}{_neighbour(graph, op)}",
            span=op.source,
            hint="name one device, for example gpu:0",
        )


def _neighbour(graph: Graph, op: Op) -> str:
    """Which other line the op hangs together with, for an error about its place."""
    for name in op.operands:
        other = graph.producers[name]
        if other.source is not None and other.source != op.source:
            return f", and takes '{name}' of {other.source}"
    for value in op.results:
        for user in graph.uses.get(value.name, ()):
            if user.source is not None and user.source != op.source:
                return f", and is used by '{user.name}' of {user.source}"
    return ""


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
        # Parts on nodes or devices of other kinds go to the first of these.
        kind = parts[0].node, parts[0].device
        same = [part for part in parts if (part.node, part.device) == kind]
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
            if _is_one_server(cluster, written, used):
                written = used[0]  # nothing is sent
            chosen = complete(cluster, written, near)
            _check_one_device(graph, op, chosen)
            places[id(op)] = places[id(parameter)] = chosen
            of_group.setdefault(op.attrs["group"], chosen)
    anywhere = first_host(cluster, complete(cluster, computing, computing))
    for op in graph.of_kind("record"):
        source = producers[op.operands[0]]
        if id(source) in known:
            places[id(op)] = known[id(source)]
        else:  # a parameter or a constant
            at = users(op.operands[0])
            places[id(op)] = first_host(cluster, at[0]) if at else anywhere
    for op in graph.ops:
        if op.kind == "parameter" and id(op) not in places:
            at = users(op.name) or [anywhere]
            places[id(op)] = joined(cluster, at) or at[0]
        elif op.kind == "store":
            new = producers[op.operands[1]]
            places[id(op)] = places[id(new)] if id(new) in places else known[id(new)]
        elif op.kind == "optimizer":
            default = Place(servers) if servers else computing
            places[id(op)] = of_group.get(
                op.attrs["group"], complete(cluster, op.place or default, default)
            )
        elif op.kind in ("read", "constant") and id(op) not in known:
            users_here = graph.uses.get(op.result.name, ())
            at = [places[id(u)] for u in users_here if u.kind == "record"]
            at = users(op.result.name) or at
            if at:
                places[id(op)] = at[0]
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
    hosts = {host for place in used for host in cluster.hosts(place)}
    return (
        written.node == SERVER
        and written.node_ids is None
        and len(hosts) == 1
        and used[0].node == SERVER
    )


def _check_one_device(graph: Graph, op: Op, place: Place) -> None:
    if len(graph.cluster.resolve(place)) > len(graph.cluster.hosts(place)):
        recipes = graph.of_kind("optimizer")
        said = next(r for r in recipes if r.attrs["group"] == op.attrs["group"])
        where = f", of {op.source}," if op.source else ""
        raise GraphError(
            f"the optimizer of '{op.operands[0]}'{where} stands on more than one "
            f"device of a node: {place}",
            span=said.source,
            hint="name one device, for example cpu",
        )


def _check_devices(graph: Graph, placed: Iterable[Op]) -> None:
    """Raise GraphError where two ops stand on different devices of one node."""
    firsts: dict[Place, Op] = {}
    for op in placed:
        assert op.place is not None
        if op.kind not in ENTRIES:  # they stand with those that use or update them
            firsts.setdefault(op.place, op)
    held: dict[tuple[str, int], tuple[Location, Op]] = {}
    for place, op in firsts.items():
        for at in graph.cluster.resolve(place):
            other, first = held.setdefault((at.node, at.node_id), (at, op))
            if (at.device, at.device_id) == (other.device, other.device_id):
                continue
            raise GraphError(
                f"{_who(op)} stands on {at.device}:{at.device_id} of {at.node}:"
                f"{at.node_id}, and {_who(first)}{_line(first)} on "
                f"{other.device}:{other.device_id}; a node computes on one device",
                span=op.source,
                hint="name the same device for both",
            )


def _who(op: Op) -> str:
    return "an optimizer" if op.kind == "optimizer" else f"'{op.name}' ({op.kind})"


def _line(op: Op) -> str:
    return f" (line {op.source.line})" if op.source else ""


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
                at = first_host(graph.cluster, at)
            out.append(replace(op, operands=tuple(s.name for s in squares), place=at))
        else:
            out.append(op)
    return out


def _one_copy_a_place(graph: Graph) -> Graph:
    """Read an input, or make a constant, once for each place that uses it."""
    copies: dict[str, dict[Place, str]] = {}
    sources = {
        op.result.name: op
        for op in graph.ops
        if op.kind == "read" or (op.kind == "constant" and not op.operands)
    }
    for op in graph.ops:
        for name in op.operands:
            if name in sources:
                assert op.place is not None
                found = copies.setdefault(name, {})
                found.setdefault(op.place, f"{name}.{len(found)}" if found else name)
    out: list[Op] = []
    for op in graph.ops:
        if op.results and op.results[0].name in sources:
            for at, name in copies.get(op.results[0].name, {}).items():
                value = replace(op.results[0], name=name)
                out.append(replace(op, results=(value,), place=at))
            continue
        if any(name in copies for name in op.operands):
            assert op.place is not None
            operands = tuple(
                copies[name][op.place] if name in copies else name
                for name in op.operands
            )
            op = op.of(operands, op.results)
        out.append(op)
    return graph.with_ops(out)
