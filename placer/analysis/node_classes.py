"""Hosts that do the same, so that what is found of one of them holds of all.

Hosts are alike when they run the same ops of the given graphs, with as many rows, and
are alike to every other host, too: exchanging two of them changes nothing. The first
host of a place is not like the rest, since it makes sums and gives what all have; nor
are hosts that take rows of some others and not of all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from placer.graph.graph import Graph
from placer.graph.kinds import is_conversion
from placer.layouts import Layout
from placer.layouts.conversions import share_of


class Alike:
    """The classes of hosts that are alike in all of these graphs, of one cluster."""

    def __init__(self, graphs: Iterable[Graph]) -> None:
        graphs = tuple(graphs)
        marks: dict[str, list[Hashable]] = {
            host: [host.split(":")[0]] for host in graphs[0].cluster.all_hosts()
        }
        for graph in graphs:
            for number, hosts in enumerate(_host_tuples(graph)):
                for i, mark in enumerate(_marks(graph, hosts)):
                    marks[hosts[i]].append((number, mark))
            for host in _alone(graph):
                marks[host].append(host)
        self.classes: Mapping[str, Sequence[str]] = _classes(marks)
        """The hosts of each class, in their order, by the first of them."""
        self._first = {
            host: first for first, hosts in self.classes.items() for host in hosts
        }

    def first(self, host: str) -> str:
        """The first of the hosts that are like this one: itself, where it is that."""
        return self._first[host]


def _classes(marks: Mapping[str, Sequence[Hashable]]) -> dict[str, list[str]]:
    found: dict[Hashable, list[str]] = {}
    for host, mark in marks.items():
        found.setdefault(tuple(mark), []).append(host)
    return {hosts[0]: hosts for hosts in found.values()}


def _host_tuples(graph: Graph) -> Iterable[tuple[str, ...]]:
    """Every set of hosts that runs some op, once."""
    of_place = {id(op.place): graph.hosts(op) for op in graph.ops}
    return dict.fromkeys(of_place.values())


def _marks(graph: Graph, hosts: Sequence[str]) -> Iterator[Hashable]:
    """What tells hosts of one place apart: which is the first, and how many rows each
    has. Heter nodes have rows of different workers, each its own."""
    workers = graph.cluster.workers
    if share_of(hosts, 0, workers).parts != len(hosts):
        yield from hosts
        return
    batches = graph.batch, graph.batch // graph.microbatches
    longer = [batch % len(hosts) for batch in batches]
    for i in range(len(hosts)):
        yield i == 0, *(i < some for some in longer)


def _alone(graph: Graph) -> Iterator[str]:
    """Hosts that are like no other because of what they send or take."""
    for (have, need), sources, targets in dict.fromkeys(_ways(graph)):
        if sources == targets:
            continue
        if (have, need) == ("S", "S") and len(sources) > 1 and len(targets) > 1:
            yield from (*sources, *targets)
        if (have, need) == ("R", "P"):  # the one that holds the value
            there = set(sources)
            yield from [host for host in targets if host in there][:1]


_Way = tuple[tuple[Layout | None, Layout | None], tuple[str, ...], tuple[str, ...]]


def _ways(graph: Graph) -> Iterator[_Way]:
    """Every change of layout or of hosts: the layouts, who has and who needs the value."""
    values = graph.values
    for op in graph.ops:
        if is_conversion(op.kind):
            layouts = values[op.operands[0]].layout, op.result.layout
            yield layouts, graph.hosts(graph.producers[op.operands[0]]), graph.hosts(op)
    for edge, listen in graph.listens.items():
        send = graph.sends[edge]
        for name, result in zip(send.operands, listen.results, strict=True):
            layouts = values[name].layout, result.layout
            yield layouts, graph.hosts(send), graph.hosts(listen)
