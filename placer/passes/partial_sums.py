"""partial_sums: gradients of one value that are made on another place are summed there.

Needs places. A value that several ops of a place use has as many gradients there, and
where it stands on another they are summed first: one is copied, and one is sent, however
many ops there are. The same then holds of the devices of a node. What is summed for a
parameter lies on all nodes that make a part of it, and each of them sums its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from placer.graph.graph import Graph, Op


def partial_sums(graph: Graph) -> Graph:
    return graph.with_ops(made for op in graph.ops for made in _summed(graph, op))


def _summed(graph: Graph, op: Op) -> Iterator[Op]:
    """The op; a sum after sums of those of its operands that go the same way."""
    if op.kind != "accumulate" or graph.producers[op.attrs["of"]].kind == "parameter":
        yield op
        return
    parts = [graph.producers[name] for name in op.operands]
    names = list(op.operands)
    count = 0
    for way in (_place, graph.nodes):
        groups: dict[Hashable, list[int]] = {}
        for i, part in enumerate(parts):
            groups.setdefault(way(part), []).append(i)
        kept = []
        for key, group in groups.items():
            if len(group) > 1 and key != way(op):
                made = _sum(op, [names[i] for i in group], parts[group[0]], count)
                count += 1
                yield made
                kept.append((made.name, made))
            else:
                kept += [(names[i], parts[i]) for i in group]
        names, parts = [name for name, _ in kept], [part for _, part in kept]
    yield op.of(tuple(names), op.results) if count else op


def _place(op: Op) -> Hashable:
    return op.place


def _sum(op: Op, names: Sequence[str], first: Op, number: int) -> Op:
    """The sum of some of the op's operands, where the first of them is made."""
    value = replace(op.result, name=f"{op.name}.part{number}")
    attrs = {**op.attrs, "part": True}
    return Op(op.kind, tuple(names), (value,), attrs, first.place, op.source)
