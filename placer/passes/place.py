"""place: give every op its place.

Needs a differentiated graph. Afterwards every op has a canonical place:

- A forward op has its place in the spec, with defaults for what is left out. Without a
  place, it is with its gradient op, if that has one, else with its first operand.
- A gradient op is with its forward op.
- A parameter and its update are with the optimizer.

Inputs and constants are not sent: there is one `read` or `constant` for each place that
uses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from placer.analysis.servers import ServerChoice, choose_servers
from placer.graph.graph import Graph, Op, Value
from placer.graph.kinds import (
    SCALES,
    STRUCTURAL,
    is_optimizer_part,
    is_update,
)
from placer.passes.updates import owning_parameters
from placer.place import SERVER, Cluster, Place


def place(graph: Graph) -> Graph:
    """Run the pass."""
    graph = _place_with_gradients(graph)
    forward_ops = [op for op in graph.ops if _is_forward(op)]
    # Servers are chosen before all else: other ops follow their operands there.
    choices = choose_servers(graph, forward_ops)
    forward_places = _forward_places(graph, forward_ops, choices)
    places = {**forward_places, **_gradient_places(graph, forward_places)}
    places |= _accumulation_places(graph, places)
    places |= _optimizer_places(graph, places)
    placed = [
        _with_server_attribute(op, choices.get(id(op))).with_place(places[id(op)])
        for op in graph.ops
        if id(op) in places
    ]
    return _copy_sources(graph.with_ops(_split_norms(graph, placed)))


def _with_server_attribute(op: Op, choice: ServerChoice | None) -> Op:
    """Return the op with the loads that decided on its server, if it was chosen."""
    return op if choice is None else op.with_attrs(server=choice.as_attribute())


def _place_with_gradients(graph: Graph) -> Graph:
    """Give ops without a place that of their gradient op, if that has one: the residual
    then does not move."""
    producers = graph.producers
    gradient_places = {
        id(producers[op.operands[0]]): op.place
        for op in graph.ops
        if op.is_gradient and op.place is not None
    }
    if not gradient_places:
        return graph
    return graph.with_ops(
        op.with_place(gradient_places.get(id(op), op.place)) for op in graph.ops
    )


def union_place(cluster: Cluster, places: Iterable[Place]) -> Place | None:
    """Return the place with the nodes of all places and the devices of the first.

    Returns None if the nodes are of several kinds.
    """
    distinct = tuple(dict.fromkeys(places))
    if len(distinct) == 1:
        return distinct[0]
    if len({each.node for each in distinct}) != 1:
        return None
    ids = {device.node_id for each in distinct for device in cluster.resolve(each)}
    return cluster.canonical(replace(distinct[0], node_ids=tuple(sorted(ids))))


def first_node_place(cluster: Cluster, place: Place) -> Place:
    """Return the place without its nodes after the first."""
    first = cluster.resolve(place)[0]
    return cluster.canonical(replace(place, node_ids=(first.node_id,)))


def complete_place(cluster: Cluster, place: Place, node: Place) -> Place:
    """Return a place of the spec with defaults for what it leaves out.

    The default node is that of the place `node`. The default device is `cpu` on a
    server; elsewhere it is the first kind that the node declares and that is not `cpu`,
    if there is one.
    """
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
    graph: Graph, forward: Iterable[Op], choices: Mapping[int, ServerChoice]
) -> dict[int, Place]:
    """Return the places of the forward ops by id: the place in the spec, the chosen
    server, or the place of the first operand that has one."""
    cluster = graph.cluster
    default = Place(cluster.default.name)
    places: dict[int, Place] = {}
    place_of: dict[str, Place] = {}  # by value
    # Keys are ids of places that ops or this function reference: hashing is slow.
    cache: dict[tuple[int, int, int | None], Place] = {}
    for op in forward:
        nearest = next((place_of[o] for o in op.operands if o in place_of), default)
        server = choices[id(op)].server if id(op) in choices else None
        key = id(op.place), id(nearest), server
        if key not in cache:
            written = nearest if op.place is None else op.place
            if server is not None:
                written = replace(written, node_ids=(server,))
            cache[key] = complete_place(cluster, written, nearest)
        places[id(op)] = cache[key]
        for value in op.results:
            place_of[value.name] = cache[key]
    return places


def _is_forward(op: Op) -> bool:
    """Whether the op is a computed op of the model, before differentiation."""
    if op.kind in STRUCTURAL or is_optimizer_part(op.kind) or op.is_gradient:
        return False
    return op.kind != "accumulate" and (op.kind != "constant" or op.place is not None)


def _gradient_places(
    graph: Graph, forward_places: Mapping[int, Place]
) -> dict[int, Place]:
    producers = graph.producers
    return {
        id(op): forward_places[id(producers[op.operands[0]])]
        for op in graph.ops
        if op.is_gradient
    }


def _accumulation_places(graph: Graph, placed: Mapping[int, Place]) -> dict[int, Place]:
    """Return the places of sums of gradients by id: for a parameter all places of its
    gradients, for another value the place of the value."""
    producers = graph.producers
    places: dict[int, Place] = {}
    for op in graph.of_kind("accumulate"):
        source = producers[op.attrs["of"]]
        if source.kind != "parameter":
            places[id(op)] = placed[id(source)]
            continue
        gradients = [producers[name] for name in op.operands]
        candidates = [placed[id(gradient)] for gradient in gradients]
        # A place has nodes of one kind, that of the first gradient; the gradients on
        # other kinds of nodes are sent there.
        same_kind = [each for each in candidates if each.node == candidates[0].node]
        union = union_place(graph.cluster, same_kind)
        assert union is not None
        places[id(op)] = union
    return places


def _optimizer_places(graph: Graph, placed: Mapping[int, Place]) -> dict[int, Place]:
    """Return the places of all ops that are not in `placed`, by id: of updates and their
    parameters, and of ops that follow another op.

    An optimizer without a place is on the servers; if there are none, each parameter is
    updated where it is first used.
    """
    cluster, producers = graph.cluster, graph.producers
    server_kind = next(
        (kind.name for kind in cluster.kinds if kind.name == SERVER), None
    )
    places: dict[int, Place] = {}
    of_group: dict[int, Place] = {}
    default = Place(cluster.default.name)

    def user_places(name: str) -> list[Place]:
        return [placed[id(op)] for op in graph.uses.get(name, ()) if id(op) in placed]

    for op in graph.ops:
        if is_update(op.kind):
            parameter = producers[op.operands[0]]
            used_at = user_places(parameter.name)
            nearest = Place(server_kind) if server_kind else used_at[0]
            written = op.place if op.place is not None else nearest
            if _is_used_on_one_server(cluster, written, used_at):
                # The update is on the server that uses the parameter: nothing is sent.
                written = Place.merge(used_at[0], replace(written, node=None))
            completed = complete_place(cluster, written, nearest)
            places[id(op)] = places[id(parameter)] = completed
            of_group.setdefault(op.attrs["group"], completed)
    anywhere = first_node_place(cluster, complete_place(cluster, default, default))
    for op in graph.of_kind("record"):
        source = producers[op.operands[0]]
        if id(source) in placed:
            at = placed[id(source)]
        else:  # a parameter or a constant
            used_at = user_places(op.operands[0])
            at = first_node_place(cluster, used_at[0]) if used_at else anywhere
        places[id(op)] = cluster.host_memory(at)
    for op in graph.ops:
        if op.kind == "parameter" and id(op) not in places:
            used_at = user_places(op.name) or [anywhere]
            places[id(op)] = union_place(cluster, used_at) or used_at[0]
        elif op.kind == "store":
            # On the nodes of the new value, on the devices of the parameter.
            parameter, new = (producers[name] for name in op.operands)
            at = places[id(new)] if id(new) in places else placed[id(new)]
            stored_at = places[id(parameter)]
            places[id(op)] = cluster.canonical(
                replace(at, device=stored_at.device, device_ids=stored_at.device_ids)
            )
        elif op.kind == "optimizer":
            nearest = Place(server_kind) if server_kind else default
            places[id(op)] = of_group.get(
                op.attrs["group"], complete_place(cluster, op.place or nearest, nearest)
            )
        elif op.kind in ("read", "constant") and id(op) not in placed:
            users = graph.uses.get(op.result.name, ())
            recorded_at = [places[id(u)] for u in users if u.kind == "record"]
            used_at = user_places(op.result.name) or recorded_at
            if used_at:
                places[id(op)] = used_at[0]
    owners = owning_parameters(graph)
    for op in graph.ops:
        if op.kind in SCALES:
            places[id(op)] = places[id(producers[op.operands[0]])]
        elif is_optimizer_part(op.kind) and not is_update(op.kind):
            owner = owners[op.name if op.kind == "clip_value" else op.operands[0]]
            places[id(op)] = places[id(producers[owner])]
    return places


def _is_used_on_one_server(
    cluster: Cluster, written: Place, used_at: Sequence[Place]
) -> bool:
    """Whether an optimizer may be on any server, and a single server uses its
    parameter."""
    nodes = {node for place in used_at for node in cluster.nodes(place)}
    return (
        written.node == SERVER
        and written.node_ids is None
        and len(nodes) == 1
        and used_at[0].node == SERVER
    )


def _split_norms(graph: Graph, placed: list[Op]) -> list[Op]:
    """Split each norm into one sum of squares per place of optimizers.

    The scale is computed from all of them, at the first node if there are several
    places.
    """
    place_of = {op.name: op.place for op in placed if op.kind == "parameter"}
    owners = owning_parameters(graph)
    parts: dict[str, list[Op]] = {}
    ops: list[Op] = []
    for op in placed:
        if op.kind == "sum_of_squares":
            groups: dict[Place, list[str]] = {}
            for name in op.operands:
                at = place_of[owners[name]]
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
            ops.extend(parts[op.name])
        elif op.kind in SCALES:
            squares = [part for name in op.operands for part in parts[name]]
            at = squares[0].place
            assert at is not None
            if any(part.place != at for part in squares):
                at = first_node_place(graph.cluster, at)
            ops.append(replace(op, operands=tuple(s.name for s in squares), place=at))
        else:
            ops.append(op)
    return ops


def _copy_sources(graph: Graph) -> Graph:
    """Duplicate inputs and constants: one `read` or `constant` for each place with
    users.

    The first keeps its name, `%x`; the others are `%x.1`, `%x.2`.
    """
    copies: dict[str, dict[Place, str]] = {}
    sources = {
        op.result.name: op
        for op in graph.ops
        if op.kind == "read" or (op.kind == "constant" and not op.operands)
    }

    def place_for(source: Op, user: Op) -> Place:
        assert user.place is not None
        if source.kind == "read":
            return graph.cluster.host_memory(user.place)
        return user.place

    for op in graph.ops:
        for name in op.operands:
            if name in sources:
                at = place_for(sources[name], op)
                of_source = copies.setdefault(name, {})
                number = len(of_source)
                of_source.setdefault(at, f"{name}.{number}" if number else name)
    ops: list[Op] = []
    for op in graph.ops:
        if op.results and op.results[0].name in sources:
            for at, name in copies.get(op.results[0].name, {}).items():
                value = replace(op.results[0], name=name)
                ops.append(replace(op, results=(value,), place=at))
            continue
        if any(name in copies for name in op.operands):
            operands = tuple(
                copies[name][place_for(sources[name], op)] if name in copies else name
                for name in op.operands
            )
            op = op.with_values(operands, op.results)
        ops.append(op)
    return graph.with_ops(ops)
