"""place: give every op its place.

Needs a differentiated graph. Afterwards every op has a canonical place:

- A forward op has the place from the spec, completed by defaults. Without one, it follows
  its gradient op, else its first operand.
- A gradient op follows its forward op.
- A parameter and its update follow the optimizer.

Inputs and constants are not sent: each place that uses them has its own `read` or
`constant`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.optax_groups import rule_text
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.split_sums import combine_sums, sums_at_places
from placer.compiler.graph.structural_ops import (
    CLIP_PART,
    SCALES,
    is_optimizer_part,
    is_update,
)
from placer.compiler.passes.gradients.updates import owning_parameters
from placer.compiler.passes.placement.servers import ServerChoice, choose_servers
from placer.errors import GraphError
from placer.place import SERVER, Cluster, Place


def place(graph: Graph) -> Graph:
    """Run the pass."""
    graph = _place_with_gradients(graph)
    forward_ops = [op for op in graph.ops if _is_forward(op)]
    # Choose servers first, because other ops follow their operands to them.
    choices = choose_servers(graph, forward_ops)
    places = _forward_places(graph, forward_ops, choices)
    whys = {op: _why_forward(graph, op, places[op], choices) for op in forward_ops}
    places |= {
        op: places[graph.producers[op.operands[0]]]
        for op in graph.ops
        if op.is_gradient
    }
    places |= _accumulation_places(graph, places)
    parameter_places, parameter_whys = _parameter_places(graph, places)
    places |= parameter_places
    whys |= parameter_whys
    places |= _places_of_others(graph, places)
    placed = graph.with_ops(
        op.with_place(places[op], whys.get(op, "")) for op in graph.ops if op in places
    )
    return _copy_sources(_split_clips(_split_norms(placed)))


def _place_with_gradients(graph: Graph) -> Graph:
    """Give ops without a place the place of their gradient op, if set."""
    # Residuals then stay at one place, and need no message.
    gradient_places = {
        graph.producers[op.operands[0]]: op.place
        for op in graph.ops
        if op.is_gradient and op.place is not None
    }
    if not gradient_places:
        return graph
    return graph.with_ops(
        op.with_place(
            gradient_places[op],
            f"it has no place, so it follows its gradient op at {gradient_places[op]}",
        )
        if op in gradient_places
        else op
        for op in graph.ops
    )


def _why_forward(
    graph: Graph, op: Op, place: Place, choices: Mapping[Op, ServerChoice]
) -> str:
    """Return the reason for a forward op's place, unless the spec states all of it."""
    if op.place is None:
        default = Place(graph.cluster.default.name)
        return f"it has no place, so it follows its first placed operand, else is on {default}"
    if op in choices:
        return f"specified as {op.place}: {choices[op].why}"
    if op.place != place and not op.why:
        return f"specified as {op.place}, completed by defaults"
    return ""


def _forward_places(
    graph: Graph, forward: Iterable[Op], choices: Mapping[Op, ServerChoice]
) -> dict[Op, Place]:
    """Return the places of forward ops."""
    # A place comes from the spec, the chosen server, or the first operand with a place.
    cluster = graph.cluster
    default = Place(cluster.default.name)
    places: dict[Op, Place] = {}
    place_of: dict[str, Place] = {}  # by value
    # Keys are ids of places that stay referenced, because hashing places is slow.
    cache: dict[tuple[int, int, int | None], Place] = {}
    for op in forward:
        nearest = next((place_of[o] for o in op.operands if o in place_of), default)
        server = choices[op].server if op in choices else None
        key = id(op.place), id(nearest), server
        if key not in cache:
            written = nearest if op.place is None else op.place
            if server is not None:
                written = replace(written, node_ids=(server,))
            cache[key] = cluster.complete(written, nearest)
        places[op] = cache[key]
        place_of.update((value.name, places[op]) for value in op.results)
    return places


def _is_forward(op: Op) -> bool:
    """Whether the op is a computed op of the model, not of its gradients."""
    if not op.is_computed or is_optimizer_part(op.kind) or op.is_gradient:
        return False
    if op.kind in ("accumulate", CLIP_PART):
        return False
    return op.kind != "constant" or op.place is not None


def _accumulation_places(graph: Graph, placed: Mapping[Op, Place]) -> dict[Op, Place]:
    """Return the places of sums of gradients."""
    # A parameter's sum is at all places of its gradients, any other sum at its value.
    producers = graph.producers
    places: dict[Op, Place] = {}
    for op in graph.of_kind("accumulate"):
        source = producers[op.attrs["of"]]
        if source in placed:
            places[op] = placed[source]
            continue
        candidates = [placed[producers[name]] for name in op.operands]
        # A place has nodes of one kind, here that of the first gradient. Gradients on
        # other kinds of nodes are sent to it.
        same_kind = [each for each in candidates if each.node == candidates[0].node]
        union = graph.cluster.union(same_kind)
        assert union is not None
        places[op] = union
    return places


def _user_places(graph: Graph, name: str, placed: Mapping[Op, Place]) -> list[Place]:
    """Return the places of the computed ops that use a value."""
    users = graph.uses.get(name, ())
    return [placed[op] for op in users if op.is_computed and op in placed]


def _writer_places(graph: Graph, name: str, placed: Mapping[Op, Place]) -> list[Place]:
    """Return the places of the ops that compute the new value of a state."""
    stores = (op for op in graph.uses.get(name, ()) if op.kind == "store")
    return [placed[graph.producers[op.operands[1]]] for op in stores]


ON_ONE_SERVER = "unsliced, on the only server that uses it"
"""The reason for the place of a parameter that one server alone uses."""


def _parameter_places(
    graph: Graph, placed: Mapping[Op, Place]
) -> tuple[dict[Op, Place], dict[Op, str]]:
    """Return the places of parameters, updates and optimizers, with reasons."""
    # An optimizer without a place is on the servers. Without servers, each parameter is
    # updated where it is first used. A parameter without an update is where it is used.
    cluster, producers = graph.cluster, graph.producers
    servers = next(
        (Place(kind.name) for kind in cluster.kinds if kind.name == SERVER), None
    )
    places: dict[Op, Place] = {}
    whys: dict[Op, str] = {}
    of_group: dict[int, Place] = {}
    default = servers or Place(cluster.default.name)
    for op in graph.ops:
        if not is_update(op.kind):
            continue
        parameter = producers[op.operands[0]]
        used_at = _user_places(graph, parameter.name, placed)
        nearest = servers or used_at[0]
        written = nearest if op.place is None else op.place
        rule = rule_text(graph.optimizers[op.attrs["group"]])
        whys[parameter] = f"a parameter is stored with its optimizer ({rule})"
        if op.place is None:
            whys[op] = (
                "it has no place, so it is on the servers, which share parameters by size"
                if servers
                else "it has no place, and the cluster has no servers, so it follows the"
                " first op that uses its parameter"
            )
        if _is_used_on_one_server(cluster, written, used_at):
            # The update is on the server that uses the parameter, so nothing is sent.
            written = Place.merge(used_at[0], replace(written, node=None))
            whys[parameter] = ON_ONE_SERVER
            if op.place is None:
                whys[op] = (
                    f"it has no place, so it follows its parameter: {ON_ONE_SERVER}"
                )
        completed = cluster.complete(written, nearest)
        if graph.modes[op.attrs["group"]] is None:
            # In synchronous training, all threads of a process share the parameters.
            completed = cluster.first_threads(completed)
        places[op] = places[parameter] = completed
        of_group.setdefault(op.attrs["group"], completed)
    for group, op in graph.optimizers.items():
        places[op] = of_group.get(group, cluster.complete(op.place or default, default))
    anywhere = _first_default_node(cluster)
    for op in graph.weights:
        if op in places:
            continue
        written_at = _writer_places(graph, op.name, placed)
        used_at = written_at or _user_places(graph, op.name, placed)
        if op.kind == "sparse_table" and servers is not None:
            places[op] = cluster.complete(servers)
            whys[op] = "not trained: its rows are on the servers"
            continue
        places[op] = cluster.union(used_at or [anywhere]) or used_at[0]
        trained = "not trained"
        if "group" in op.attrs:
            trained += ", since the loss does not depend on it"
        where = "it follows the first op that uses it" if used_at else "no op uses it"
        if written_at:
            where = "it follows the op that computes its new value"
        whys[op] = f"{trained}: {where}"
    return places, whys


def _first_default_node(cluster: Cluster) -> Place:
    default = Place(cluster.default.name)
    return cluster.first_node(cluster.complete(default))


def _places_of_others(graph: Graph, placed: Mapping[Op, Place]) -> dict[Op, Place]:
    """Return the places of ops that follow others."""
    # Structural ops and optimizer ops follow their operands. Inputs and constants
    # follow their users; unused ones have no place.
    cluster, producers = graph.cluster, graph.producers
    anywhere = _first_default_node(cluster)
    places = dict(placed)
    for op in graph.ops:
        if op in places or op.is_computed or not op.operands:
            continue
        if op.structure.update is not None:
            continue  # optimizer ops are placed below
        source = producers[op.operands[0]]
        if op.kind == "store":
            # The store runs on the nodes of the new value and the devices of the parameter.
            nodes = cluster.nodes(places[producers[op.operands[1]]])
            places[op] = cluster.place_of(nodes, places[source])
            continue
        if source.is_computed and source in placed:
            at = placed[source]
        else:  # for a parameter, an input or a constant, one node is enough
            used_at = _user_places(graph, op.operands[0], placed)
            at = cluster.first_node(used_at[0]) if used_at else anywhere
        places[op] = _memory_at(graph, op, at)
    for op in graph.ops:
        if op not in places and not op.operands:
            users = graph.uses.get(op.name, ())
            used_at = _user_places(graph, op.name, placed)
            used_at += [places[user] for user in users if user in places]
            if used_at:
                places[op] = used_at[0]
    owners = owning_parameters(graph)
    for op in graph.ops:
        if op.kind == CLIP_PART or op.kind in SCALES:
            places[op] = places[producers[op.operands[0]]]
        elif op not in places and is_optimizer_part(op.kind):
            owner = owners[op.name if op.kind == "clip_value" else op.operands[0]]
            places[op] = places[producers[owner]]
    return places


def _is_used_on_one_server(
    cluster: Cluster, written: Place, used_at: Sequence[Place]
) -> bool:
    """Whether an optimizer may be on any server, and one server alone uses its parameter."""
    if written.node != SERVER or written.node_ids is not None:
        return False
    if not used_at or used_at[0].node != SERVER:
        return False
    return len({node for place in used_at for node in cluster.nodes(place)}) == 1


def _split_norms(graph: Graph) -> Graph:
    """Split each norm into one sum of squares per place of optimizers."""
    # The scale combines all sums, at the first node if the places differ.
    owners = owning_parameters(graph)
    parts: dict[str, list[Op]] = {}
    rewriter = Rewriter(graph)
    for op in rewriter:
        if op.kind == "sum_of_squares":
            groups: dict[Place, list[str]] = {}
            for name in op.operands:
                owner = graph.producers[owners[name]]
                groups.setdefault(owner.known_place, []).append(name)
            parts[op.name] = sums_at_places(op, groups)
            rewriter.replace(*parts[op.name])
        elif op.kind in SCALES:
            squares = [part for name in op.operands for part in parts[name]]
            rewriter.replace(combine_sums(graph.cluster, op, squares))
    return rewriter.graph()


def _split_clips(graph: Graph) -> Graph:
    """Split each per-worker clip op by node kind: workers and heter nodes clip their own
    gradients.

    Raises GraphError for one norm over both.
    """
    rewriter = Rewriter(graph)
    for op in rewriter:
        if op.kind != CLIP_PART:
            continue
        places = [graph.producers[name].known_place for name in op.operands]
        parts: dict[str | None, list[int]] = {}
        for i, place in enumerate(places):
            parts.setdefault(place.node, []).append(i)
        if len(parts) > 1 and "global_norm" in op.attrs:
            at = [places[indices[0]] for indices in parts.values()]
            raise GraphError(
                f"'global_norm' covers gradients computed at {at[0]} and at {at[1]}, but"
                " asynchronous nodes clip their own gradients only",
                span=op.source,
                hint="use separate optimizers for the parameters of workers and of heter"
                " nodes, or clip by 'norm' or 'value'",
            )
        for indices in parts.values():
            operands = tuple(op.operands[i] for i in indices)
            clipped = op.with_values(operands, tuple(op.results[i] for i in indices))
            rewriter.insert(clipped.with_place(places[indices[0]]))
        rewriter.erase()
    return rewriter.graph()


def _copy_sources(graph: Graph) -> Graph:
    """Duplicate inputs and constants, so that each place with users has its own op."""
    # The first keeps its name, `%x`; the copies are `%x.1`, `%x.2`.
    copies: dict[str, dict[Place, str]] = {}
    sources = {op.name: op for op in graph.ops if _is_anywhere(op)}
    for op in graph.ops:
        for name in op.operands:
            if name in sources:
                at = _memory_at(graph, sources[name], op.known_place)
                of_source = copies.setdefault(name, {})
                number = len(of_source)
                of_source.setdefault(at, f"{name}.{number}" if number else name)
    rewriter = Rewriter(graph)
    for op in rewriter:
        if _is_anywhere(op):
            why = "" if op.is_computed else _READ_ANYWHERE
            for at, name in copies.get(op.name, {}).items():
                copy = replace(op, results=(replace(op.result, name=name),))
                rewriter.insert(copy.with_place(at, why))
            rewriter.erase()
            continue
        names = {
            name: copies[name][_memory_at(graph, sources[name], op.known_place)]
            for name in op.operands
            if name in copies
        }
        rewriter.replace_operands(names)
    return rewriter.graph()


def _memory_at(graph: Graph, op: Op, at: Place) -> Place:
    """Return the place `at`, or its host memory if the op runs there."""
    return graph.cluster.host_memory(at) if op.structure.host_memory else at


def _is_anywhere(op: Op) -> bool:
    """Whether each place that uses the value runs the op itself."""
    return op.structure.anywhere or (op.kind == "constant" and not op.operands)


_READ_ANYWHERE = "each node reads its own inputs: inputs are not sent"
