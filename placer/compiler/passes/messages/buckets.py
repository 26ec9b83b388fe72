"""buckets: divide the gradients for servers into messages that leave during the backward pass.

Needs a laid-out graph. Afterwards the conversions that bring gradients to servers have a
`bucket`, a number from 0, if their optimizer group sets `bucket_cap_mb`. The gradients that
the backward pass computes first, those of the last layers, go into the first bucket of
their group and place. A bucket holds up to `bucket_cap_mb` MiB, or more if one op computes
more, since the gradients of an op are not divided. Ops that only later buckets need have
the attribute `after_bucket`: they run after the message of this bucket is sent.

Servers send parameters in the order of the updates, so that they can send each parameter
right after its update.

The buckets follow Li et al., "PyTorch Distributed: experiences on accelerating data
parallel training", 2020.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import is_conversion
from placer.compiler.passes.gradients.updates import owning_parameters
from placer.place import Place
from placer.place.node_kinds import SERVER

MIB: Final = 1 << 20


def buckets(graph: Graph) -> Graph:
    """Run the pass."""
    found = _buckets(graph)
    if not found:
        return graph
    number_of = {op: i for i, each in enumerate(found) for op in each.conversions}
    before = _buckets_before(found)
    stages = _stages(graph, number_of)
    ranked: list[tuple[int, Op]] = []
    ranks: dict[str, int] = {}  # by value: the rank of its op
    for op in graph.ops:
        stage = stages.get(op)
        # Ops outside all buckets run after their operands.
        after = max((ranks[name] for name in op.operands), default=0)
        rank = after if stage is None else stage
        ranks.update((value.name, rank) for value in op.results)
        if op in number_of:
            op = op.with_attrs(bucket=number_of[op])
        elif op.is_computed and (earlier := before.get((stage, op.place))) is not None:
            op = op.with_attrs(after_bucket=earlier)
        ranked.append((rank, op))
    ranked.sort(key=lambda entry: entry[0])
    return graph.with_ops(_in_order_of_updates(graph, [op for _, op in ranked]))


class _Bucket(NamedTuple):
    """Gradients of a group, computed at one place, that go to servers in one message.

    Attributes:
        last: the position in the graph of the op that computes the last gradient.
        group: the optimizer group.
        place: the place that computes the gradients.
        nbytes: the size of the gradients in bytes.
        conversions: the conversions that bring the gradients to servers.
    """

    last: int
    group: int
    place: Place
    nbytes: int
    conversions: Sequence[Op]


def _buckets(graph: Graph) -> list[_Bucket]:
    """Return the buckets in the order in which their gradients are completed."""
    caps = {
        group: op.attrs["bucket_cap_mb"] * MIB
        for group, op in graph.optimizers.items()
        if "bucket_cap_mb" in op.attrs
    }
    full: list[_Bucket] = []
    last: dict[tuple[int, Place], _Bucket] = {}  # by group and place: still growing
    for new in _gradients_of_ops(graph, caps) if caps else ():
        key = new.group, new.place
        old = last.get(key)
        if old is None:
            last[key] = new
        elif old.nbytes + new.nbytes > caps[new.group]:
            full.append(old)
            last[key] = new
        else:
            conversions = [*old.conversions, *new.conversions]
            last[key] = _Bucket(new.last, *key, old.nbytes + new.nbytes, conversions)
    return sorted([*full, *last.values()], key=lambda each: each[:2])


def _gradients_of_ops(graph: Graph, groups: Container[int]) -> list[_Bucket]:
    """Return the gradients that go to servers, one bucket per op and group."""
    # The order of the buckets is the order of the ops that compute the gradients.
    owners = owning_parameters(graph)
    position = {op: i for i, op in enumerate(graph.ops)}
    found: dict[tuple[int, int], list[Op]] = {}
    for op in graph.ops:
        if (
            is_conversion(op.kind)
            and op.name in owners
            and _goes_to_a_server(graph, op)
        ):
            group = graph.producers[owners[op.name]].attrs["group"]
            if group in groups:
                at = position[_computed_by(graph, op)]
                found.setdefault((at, group), []).append(op)
    return [
        _Bucket(
            at,
            group,
            graph.ops[at].known_place,
            sum(graph.tensor_type(op.name).nbytes(graph.batch) for op in conversions),
            conversions,
        )
        for (at, group), conversions in sorted(found.items(), key=lambda each: each[0])
    ]


def _computed_by(graph: Graph, conversion: Op) -> Op:
    """Return the op that computed the gradient behind a conversion."""
    # Between gradient and conversion, the gradient may be cut into blocks, or summed over
    # the threads of each process.
    op = conversion
    while op.kind == "cut" or is_conversion(op.kind):
        op = graph.producers[op.operands[0]]
    return op


def _goes_to_a_server(graph: Graph, conversion: Op) -> bool:
    (name,), nodes = conversion.operands, graph.nodes(conversion)
    source_nodes = graph.nodes(graph.producers[name])
    is_server = conversion.known_place.node == SERVER
    return is_server and len(nodes) == 1 and nodes[0] not in source_nodes


def _buckets_before(
    found: Sequence[_Bucket],
) -> dict[tuple[int | None, Place | None], int]:
    """Return the previous bucket at the same place, by number and place of each bucket."""
    before: dict[tuple[int | None, Place | None], int] = {}
    last: dict[Place, int] = {}
    for number, bucket in enumerate(found):
        if bucket.place in last:
            before[number, bucket.place] = last[bucket.place]
        last[bucket.place] = number
    return before


def _stages(graph: Graph, number_of: Mapping[Op, int]) -> dict[Op, int]:
    """Return the first bucket that needs each op, for the ops that buckets need."""
    stages: dict[Op, int] = {}
    needed: dict[str, int] = {}  # by value
    for op in reversed(graph.ops):
        numbers = [needed[v.name] for v in op.results if v.name in needed]
        if op in number_of:
            numbers.append(number_of[op])
        if numbers:
            stages[op] = stage = min(numbers)
            for name in op.operands:
                needed[name] = min(stage, needed.get(name, stage))
    return stages


def _in_order_of_updates(graph: Graph, ops: Sequence[Op]) -> Iterator[Op]:
    """Yield the ops with parameters first, in the order of their updates."""
    # Conversions that bring bucketed parameters to their users come right after the
    # parameters, in the order in which the gradients arrive.
    owners = owning_parameters(graph)
    order = [owners[op.name] for op in ops if "bucket" in op.attrs]
    brought: dict[str, list[Op]] = {name: [] for name in order}
    for op in ops:
        if is_conversion(op.kind) and op.operands[0] in brought:
            brought[op.operands[0]].append(op)
    first = [op for op in ops if op.kind == "parameter"]
    first += [op for of_parameter in brought.values() for op in of_parameter]
    yield from first
    moved = {*first}
    yield from (op for op in ops if op not in moved)
