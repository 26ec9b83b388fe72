"""layout: give every value a layout, and insert the conversions that ops need.

Needs a placed, sliced graph. Afterwards every value has a layout (R, S or P), and every op
has its operands on its own nodes, in the layouts it needs. Conversions such as
`all_reduce` precede their first user. A value is converted once per layout and place, for
all users.

Between processes with several threads, a sum is first added up within each process, in
thread order, at the first thread. A replica goes to the first thread of each process, and
from there to the other threads.

When a replica (R) becomes part of a sum (P), it counts on one node, by `partial`. In a step
with asynchronous groups it counts on every node in proportion to its rows, by `row_share`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, lcm, prod

from msgspec.structs import replace

from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.keyed import is_keyed
from placer.compiler.graph.layout_rules import (
    Layouts,
    LayoutSignature,
    forward_signature,
)
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.signatures import signature
from placer.compiler.graph.structural_ops import (
    CONVERSIONS,
    PARTIAL,
    ROW_SHARE,
    conversion_kind,
)
from placer.compiler.passes.exchange.independent_workers import (
    check_independent_workers,
    has_pushes,
    pushing_nodes,
)
from placer.compiler.passes.messages.check_parts import check_parts
from placer.compiler.passes.messages.uneven_batch import describe_batch, nearest_sizes
from placer.errors import GraphError
from placer.place import HETER, WORKER, Place
from placer.place.layouts import Layout
from placer.place.layouts.partition import RowShard, row_shards
from placer.place.types import TensorType


def lay_out(graph: Graph) -> Graph:
    """Run the layout pass.

    Raises GraphError if the batch cannot be split evenly where a value is split, or if
    asynchronous workers need values of each other.
    """
    layouts: dict[str, Layout] = {}
    needed: list[Layouts] = []
    needed_by_first_result: dict[str, Layouts] = {}
    cache: dict[tuple[object, ...], LayoutSignature] = {}

    def needed_by(op: Op) -> Layouts:
        return needed_by_first_result[op.name]

    def of_forward(op: Op) -> LayoutSignature:
        types = graph.operand_types(op)
        have = [
            _arriving_layout(graph, op, name, value_type, layouts)
            for name, value_type in zip(op.operands, types, strict=True)
        ]
        attrs_text = repr(op.attrs) if op.attrs else ""
        key = op.kind, attrs_text, len(op.results), *have, *types
        if key not in cache:
            cache[key] = forward_signature(graph, op, have)
        return cache[key]

    for op in graph.ops:
        needs, gives = signature(graph, op, layouts, needed_by, of_forward)
        needed.append(needs)
        if op.results:
            needed_by_first_result[op.name] = needs
        for value, layout in zip(op.results, gives, strict=True):
            layouts[value.name] = layout
    laid_out = _insert_conversions(graph, layouts, needed)
    check_rows(laid_out)
    check_parts(laid_out)
    check_independent_workers(laid_out)
    return laid_out


def _arriving_layout(
    graph: Graph,
    op: Op,
    name: str,
    value_type: TensorType,
    layouts: Mapping[str, Layout],
) -> Layout:
    """Return the layout in which an operand arrives."""
    # An operand keeps the layout of its value, except for rows from a single other node:
    # they are split, so that the nodes share the work.
    producer = graph.producers[name]
    if producer.place is op.place:
        return layouts[name]
    source_nodes = graph.nodes(producer)
    from_one_node = len(source_nodes) == 1 and source_nodes != graph.nodes(op)
    return "S" if from_one_node and value_type.has_rows else layouts[name]


def check_rows(graph: Graph) -> None:
    """Check that the batch splits evenly for every value.

    Rows are split over microbatches, over nodes, and over devices of a node that compute
    together. The product of these numbers must divide the batch. Raises GraphError with
    the nearest valid batch sizes as hint.
    """
    checked: set[tuple[object, ...]] = set()
    for op in graph.ops:
        if op.structure.anywhere and op.name not in graph.uses:
            continue  # users read the whole batch with their own `read`
        for value in op.results:
            value_type = value.type
            if is_keyed(graph, value.name):
                continue  # split by key
            over = value.layout, value.microbatch_layout
            key = id(value_type), over, id(op.place), op.is_computed
            if key in checked:
                continue
            checked.add(key)
            has_rows = isinstance(value_type, TensorType) and value_type.has_rows
            device_parts = 1
            if op.is_computed and has_rows:
                device_parts = len(graph.cluster.device_ids(op.known_place))
            splits: list[tuple[int, str]] = []
            if value.layout == "S":
                shards = row_shards(graph.nodes(op), graph.cluster.workers)
                # A heter node with the rows of k workers splits k parts over its d
                # devices at once. A part must be divisible by d / gcd(d, k) only.
                device_parts = lcm(
                    *(
                        device_parts // gcd(device_parts, len(shard.part_indices))
                        for shard in shards
                        if shard.part_indices
                    )
                )
                splits.append((shards[0].num_parts, _noun_of_parts(graph, op, shards)))
            splits.append((device_parts, "devices"))
            if has_rows and value.microbatch_layout == "S":
                splits.append((graph.microbatches, "microbatches"))
            if graph.batch % prod(count for count, _ in splits):
                splits = [split for split in splits if split[0] > 1]
                raise _uneven_batch(graph, op, value, splits)


def _noun_of_parts(graph: Graph, op: Op, shards: Sequence[RowShard]) -> str:
    """Return the noun for the nodes that split the rows of an op."""
    by_worker = shards[0].num_parts > len(shards)
    nodes = graph.cluster.worker_nodes if by_worker else graph.nodes(op)
    if all(node.thread is None for node in nodes):
        return "workers" if by_worker else "nodes"
    return "threads of workers" if by_worker else "threads"


class UnevenBatchError(GraphError):
    """The batch cannot be split evenly over nodes, devices or microbatches."""


def _uneven_batch(
    graph: Graph, op: Op, value: Value, splits: Sequence[tuple[int, str]]
) -> GraphError:
    parts = prod(count for count, _ in splits)
    what = " x ".join(f"{count} {noun}" for count, noun in splits)
    source, name = op.source, value.name
    if source is None:  # the op has no position in the spec: point at its first user
        user = graph.uses[name][0]
        source, name = user.source, user.name
    return UnevenBatchError(
        f"{describe_batch(graph)} cannot be split evenly over the {what} of {op.place}, as"
        f" '{name}' needs",
        span=source,
        hint=nearest_sizes(graph, parts),
    )


COMPUTING = {WORKER, HETER}
"""The node kinds that compute gradients in asynchronous training."""

_Chain = tuple[Op, ...]
"""Ops that convert a value one after another; the last op gives the result."""


def _insert_conversions(
    graph: Graph, layouts: Mapping[str, Layout], needed: Sequence[Layouts]
) -> Graph:
    """Set layouts, and insert conversions before their first users."""
    # All users of a value are collected first, so that they share its conversions.
    # `needed`: for each op, the layouts of its operands.
    requests: dict[str, list[tuple[Layout, Place]]] = {}
    to_convert: dict[int, list[int]] = {}  # by op: the indices of the operands
    for number, (op, needs) in enumerate(zip(graph.ops, needed, strict=True)):
        for i, (name, layout) in enumerate(zip(op.operands, needs, strict=True)):
            if not _is_satisfied(graph, name, layouts[name], layout, op):
                place = _needed_at(graph, name, op)
                requests.setdefault(name, []).append((layout, place))
                to_convert.setdefault(number, []).append(i)
    rewriter = Rewriter(graph)
    is_asynchronous = has_pushes(graph)
    plans = {
        name: _plan_conversions(
            rewriter, graph, name, layouts[name], requested, is_asynchronous
        )
        for name, requested in requests.items()
    }
    emitted: set[Op] = set()
    for number, (op, needs) in enumerate(zip(rewriter, needed, strict=True)):
        operands = op.operands
        if number in to_convert:
            names = list(operands)
            for i in to_convert[number]:
                chains = plans[names[i]]
                place = _needed_at(graph, names[i], op)
                chain = next(c for c in chains if _serves(graph, c, needs[i], place))
                rewriter.insert(*(each for each in chain if each not in emitted))
                emitted.update(chain)
                names[i] = chain[-1].name
            operands = tuple(names)
        results = tuple(
            [
                Value(v.name, v.type, layouts[v.name], v.microbatch_layout, v.flat)
                for v in op.results
            ]
        )
        rewriter.replace(op.with_values(operands, results))
    return rewriter.graph()


def _is_satisfied(graph: Graph, name: str, have: Layout, need: Layout, op: Op) -> bool:
    """Whether an op can use an operand without a conversion."""
    if have != need:
        return False
    if op.structure.moves:
        return True
    producer = graph.producers[name]
    if producer.place is op.place:
        return True
    if op.kind in ("reduce_scatter", "all_gather") and "ring" not in op.attrs:
        # These ops sum the parts, or join the ranges, of one node per process.
        return graph.cluster.first_threads(producer.known_place) == producer.place
    nodes, source_nodes = graph.nodes(op), graph.nodes(producer)
    if nodes is source_nodes:
        return True
    if have == "R":
        return set(nodes) <= set(source_nodes)
    if have == "P" and op.kind == "accumulate" and set(source_nodes) <= set(nodes):
        return True  # the other nodes of the op add nothing to the sum
    return nodes == source_nodes


def _needed_at(graph: Graph, name: str, op: Op) -> Place:
    """Return where an op needs an operand: on its own nodes, or for a sum of parts, on
    one node per process."""
    if op.kind == "reduce_scatter" and "ring" not in op.attrs:
        return graph.cluster.first_threads(graph.producers[name].known_place)
    return op.known_place


def _plan_conversions(
    rewriter: Rewriter,
    graph: Graph,
    name: str,
    have: Layout,
    requests: Sequence[tuple[Layout, Place]],
    is_asynchronous: bool,
) -> list[_Chain]:
    """Plan the conversions of one value for all its users."""
    # A replica is equal on all nodes, so one conversion to R serves all users of a node
    # kind, at the union of their places. S and P need one conversion per set of nodes.
    # The result is on the devices of the first user. `is_asynchronous` is true if some
    # gradients are pushed asynchronously.
    nodes_of = graph.cluster.nodes
    producer = graph.producers[name]
    chains: list[_Chain] = []
    for layout in ("R", "S", "P"):
        groups: dict[object, list[Place]] = {}
        for requested, place in requests:
            if requested == layout:
                key = place.node if requested == "R" else nodes_of(place)
                groups.setdefault(key, []).append(place)
        for places in groups.values():
            target = graph.cluster.union(places)
            assert target is not None
            kind = conversion_kind(have, layout, len(nodes_of(target)))
            counts_by_rows = kind == PARTIAL and _counts_by_rows(
                graph, producer, target
            )
            if counts_by_rows:
                kind = ROW_SHARE
            result = rewriter.new_value(name, kind, layout=layout)
            # If another op needs the whole value on these nodes, take the local rows
            # from that replica, so that they do not move twice.
            at_target = (c for c in chains if _serves(graph, c, "R", target))
            takes_replica = layout == "S" or counts_by_rows
            replica = next(at_target, ()) if takes_replica else ()
            if counts_by_rows and not replica:
                replica = _companions_replica(rewriter, graph, name, target)
            if producer.structure.anywhere and not replica:
                # The target reads the rows itself.
                at = graph.cluster.host_memory(target)
                conversion = replace(producer, results=(result,), place=at)
            else:
                operand = replica[-1].name if replica else name
                if replica and not counts_by_rows:
                    kind = CONVERSIONS["R", "S"]
                attrs = {"once": True} if producer.is_once else {}
                conversion = Op(
                    kind, (operand,), (result,), attrs, target, producer.source
                )
            ends = {producer.known_place.node, target.node}
            if (
                replica
                or not conversion.operands
                or (is_asynchronous and ends <= COMPUTING)
            ):
                # Replicas of asynchronous workers differ, so a value moves only
                # between companions.
                chains.append((*replica, conversion))
            else:
                chains.append(_over_first_threads(rewriter, graph, conversion, have))
    return chains


def _over_first_threads(
    rewriter: Rewriter, graph: Graph, conversion: Op, have: Layout
) -> _Chain:
    """Return the ops of a conversion, in two levels for processes with threads."""
    # Sums are added up within each process first. Replicas go to the first thread of
    # each process, and then to the other threads.
    cluster, (name,) = graph.cluster, conversion.operands
    want = conversion.result.layout
    assert want is not None
    source, target = graph.producers[name].known_place, conversion.known_place
    steps: list[tuple[Layout, Place]] = []
    if have == "P" and want in ("R", "S"):
        firsts = cluster.first_threads(source)
        several = len(cluster.nodes(firsts)) > 1
        if firsts != source and (several or target != firsts):
            steps.append(("P" if several else "R", firsts))
    if want == "R":
        processes = {node.process for node in cluster.nodes(source)}
        firsts = cluster.first_threads(target)
        is_there = all(node.process in processes for node in cluster.nodes(target))
        is_sum = have == "P" and steps[-1:] != [("R", cluster.first_threads(source))]
        if firsts != target and (is_sum or not is_there):
            steps.append(("R", firsts))
    chain: list[Op] = []
    for layout, place in (*steps, (want, target)):
        kind = conversion_kind(have, layout, len(cluster.nodes(place)))
        if place is not target:
            new_name = rewriter.new_name(f"{name}.{kind}")
            result = replace(conversion.result, name=new_name, layout=layout)
            chain.append(
                replace(
                    conversion,
                    kind=kind, operands=(name,), results=(result,), place=place,
                )
            )  # fmt: skip
            name, have = new_name, layout
    if chain:
        conversion = replace(conversion, kind=kind, operands=(name,))
    return (*chain, conversion)


def _counts_by_rows(graph: Graph, producer: Op, target: Place) -> bool:
    """Whether each node counts a replica in proportion to its rows when summing."""
    # In synchronous training, the replica counts on one node. An asynchronous worker
    # computes its own value from the parameters it pulled, and the gradients that it or
    # its heter node pushes must contain the worker's share.
    if producer.known_place.node not in (WORKER, HETER):
        return False
    return graph.cluster.nodes(target) in pushing_nodes(graph)


def _companions_replica(
    rewriter: Rewriter, graph: Graph, name: str, target: Place
) -> _Chain:
    """Return the op that copies a replica between workers and their heter nodes, if needed."""
    producer = graph.producers[name]
    if graph.nodes(producer) == graph.cluster.nodes(target):
        return ()
    kind = CONVERSIONS["R", "R"]
    result = rewriter.new_value(name, kind, layout="R")
    return (Op(kind, (name,), (result,), {}, target, producer.source),)


def _serves(graph: Graph, chain: _Chain, need: Layout, place: Place) -> bool:
    """Whether ops at a place can use the result of a conversion in a layout."""
    nodes, converted = graph.cluster.nodes(place), chain[-1]
    if converted.result.layout != need:
        return False
    reached = graph.nodes(converted)
    if nodes is reached or nodes == reached:
        return True
    return need == "R" and set(nodes) <= set(reached)
