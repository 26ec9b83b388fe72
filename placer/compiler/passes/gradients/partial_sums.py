"""partial_sums: sum the gradients of a value where they are computed, before they move.

Needs places. If several ops at one place use a value from another place, each computes a
gradient of it. The pass first sums these at their place, then on each node over its
devices, so that a single gradient is sent. Gradients of parameters do not change: their sum
is on all nodes that compute a part, and each node adds up its own part.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from msgspec.structs import replace

from placer.compiler.graph.graph import Graph, Op


def partial_sums(graph: Graph) -> Graph:
    """Run the pass."""
    return graph.with_ops(new for op in graph.ops for new in _split_sum(graph, op))


def _split_sum(graph: Graph, op: Op) -> Iterator[Op]:
    """Yield the op, preceded by partial sums if it is a sum of gradients."""
    if op.kind != "accumulate" or graph.producers[op.attrs["of"]].kind == "parameter":
        yield op
        return
    producers = [graph.producers[name] for name in op.operands]
    names = list(op.operands)
    count = 0
    for location_of in (_place, graph.nodes):
        groups: dict[Hashable, list[int]] = {}
        for i, producer in enumerate(producers):
            groups.setdefault(location_of(producer), []).append(i)
        terms = []
        for location, group in groups.items():
            if len(group) > 1 and location != location_of(op):
                terms_here = [names[i] for i in group]
                partial = _partial_sum(op, terms_here, producers[group[0]], count)
                count += 1
                yield partial
                terms.append((partial.name, partial))
            else:
                terms += [(names[i], producers[i]) for i in group]
        names = [name for name, _ in terms]
        producers = [producer for _, producer in terms]
    yield op.with_values(tuple(names), op.results) if count else op


def _place(op: Op) -> Hashable:
    return op.place


def _partial_sum(op: Op, names: Sequence[str], first: Op, number: int) -> Op:
    """Return the sum of some operands, at the place of the op `first`."""
    value = replace(op.result, name=f"{op.name}.part{number}")
    attrs = {**op.attrs, "part": True}
    return Op(op.kind, tuple(names), (value,), attrs, first.place, op.source)
