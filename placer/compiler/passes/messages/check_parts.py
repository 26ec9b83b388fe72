"""Checks that nodes and microbatches divide the parts of a batch evenly."""

from __future__ import annotations

from math import prod

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.passes.messages.uneven_batch import describe_batch, nearest_sizes
from placer.errors import GraphError
from placer.place.layouts.partition import row_shards


def check_parts(graph: Graph) -> None:
    """Check each function that computes the parts of a batch (`batch: replica`).

    Needs a laid-out graph. Raises GraphError if the batch cannot be cut into equal parts,
    or if a node or a microbatch would have a fraction of a part.
    """
    for op in graph.ops:
        parts = op.attrs.get("parts")
        if parts and op.is_computed and not op.is_gradient:
            _check(graph, op, parts)


def _check(graph: Graph, op: Op, parts: int) -> None:
    name = op.name.partition(".")[0]
    if graph.batch % parts:
        raise GraphError(
            f"{describe_batch(graph)} cannot be cut into the {parts} equal parts of"
            f" '{name}'",
            span=op.source,
            hint=nearest_sizes(graph, parts),
        )
    values = [*op.operands, op.name]
    shares: list[tuple[int, str]] = []
    if any(graph.layout(name) == "S" for name in values):
        shards = row_shards(graph.nodes(op), graph.cluster.workers)
        shares = [(shards[0].num_parts, "nodes")]
    if any(graph.values[name].microbatch_layout == "S" for name in values):
        shares.append((graph.microbatches, "microbatches"))
    total = prod(count for count, _ in shares)
    if parts % total:
        what = " x ".join(f"{count} {noun}" for count, noun in shares)
        raise GraphError(
            f"the {what} of {op.place} cannot compute the {parts} parts of '{name}'"
            " evenly",
            span=op.source,
            hint=f"pass parts= a multiple of {total} to placer.trace, or use a number of"
            f" nodes that divides {parts}",
        )
