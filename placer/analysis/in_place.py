"""Which tables may be updated where their readers look, so that nobody pulls a copy.

An update may write over values that other nodes read only when they are done reading
for this step. They are when every segment that takes a value of a parameter is one that
the parameter's gradient waits for: the results of a segment are ready all at once.

An evaluation ends on a node when all that it computes there is there (`Node.batches`),
so a node that does something in the next step has read the parameters before. A node
whose next step no gradient waits for may still evaluate while others train: where it
reads a parameter, an update may not write over it.
"""

from __future__ import annotations

from functools import cached_property

from placer.analysis.node_classes import Alike
from placer.analysis.units import taken
from placer.graph.graph import APART, TOGETHER, Graph, Op
from placer.graph.kinds import (
    COPIES,
    is_computed,
    is_conversion,
    is_direction,
    is_update,
)
from placer.layouts.conversions import Conversion
from placer.types import ResidualType

Run = tuple[str, int, str]
"""A node, the segment that it runs, and on which devices."""


class Readers:
    """Who reads the parameters of a transferred, segmented step, and when.

    `evaluation` is the graph of what follows some of the steps, if anything does.

    What is over when a value is there is a number with a bit for each node and run.
    Ops stand in an order in which each comes after what it waits for, so one look at
    each is enough. What runs for every microbatch is over when it is for all of them, as
    it is when what they have summed up or put together is there.

    Of nodes that are alike only the first two are looked at. What one of them waits for
    on another of them, it waits for on each of the others.
    """

    def __init__(
        self,
        graph: Graph,
        evaluation: Graph | None = None,
        alike: Alike | None = None,
    ) -> None:
        self._graph = graph
        both = [graph, *([evaluation] if evaluation is not None else [])]
        self._alike = alike or Alike(both)
        self._looked_at = {
            node for nodes in self._alike.classes.values() for node in nodes[:2]
        }
        self._nodes_of: dict[int, tuple[str, ...]] = {}  # by the identity of a place
        self._evaluation: Readers | None = None
        if evaluation is not None:
            self._evaluation = Readers(evaluation, alike=self._alike)
        self._bits: dict[str | Run, int] = {}
        for i, node in enumerate(sorted(self._looked_at)):
            self._bits[node] = 1 << i
        self._ready: dict[Run, int] = {}  # before the results of a run
        self._sent: dict[tuple[int, str], int] = {}  # before a message of an edge
        self._there: dict[tuple[str, str], int] = {}  # before a value that no run makes
        self._ways: dict[tuple[int, int], Conversion] = {}  # of each value of an edge
        self._same: dict[tuple[str, str], str] = {}  # a value that is its operand
        for op in graph.ops:
            for node in self._nodes(op):
                self._follow(op, node)

    def _nodes(self, op: Op) -> tuple[str, ...]:
        """The nodes of an op that are looked at, in their order."""
        found = self._nodes_of.get(id(op.place))
        if found is None:
            nodes = filter(self._looked_at.__contains__, self._graph.nodes(op))
            found = self._nodes_of[id(op.place)] = tuple(nodes)
        return found

    def in_place(self, node: str, blocks: list[str]) -> bool:
        """Whether these parameters of the node, if they change, may do so in place."""
        node = self._alike.first(node)
        return all(
            name in self._gradients
            and self._are_over(name, self._gradients[name], node)
            for name in self._stored.intersection(blocks)
        )

    def _are_over(self, parameter: str, gradient: str, node: str) -> bool:
        """Whether nobody reads what `node` holds once it has the gradient."""
        before = self._before(gradient, node)
        uses = self._uses(parameter, node)
        if not all(before & self._bits.get(run, 0) for run in uses):
            return False
        if self._evaluation is None:
            return True
        evaluate = {each for each, *_ in self._evaluation._uses(parameter, node)}
        return all(before & self._bits[each] for each in evaluate - {node})

    def _uses(self, parameter: str, node: str) -> set[Run]:
        """Every segment, on any node, that takes the values that `node` holds."""
        found: set[Run] = set()
        ahead = [(parameter, frozenset({node}))]
        while ahead:
            name, nodes = ahead.pop()
            for op in self._graph.uses.get(name, ()):
                if op.kind == "send":
                    listen = self._graph.listens[op.attrs["edge"]]
                    at = self._positions[op.attrs["edge"], name]
                    reached = frozenset(
                        target
                        for target in self._nodes(listen)
                        if nodes & {*self._sources(op, listen, at, target)}
                    )
                    ahead.append((listen.results[at].name, reached))
                elif op.kind in _VIEWS:
                    ahead.append((op.name, nodes))
                elif op.kind in COPIES:
                    here = nodes & {*self._nodes(op)}
                    at = op.operands.index(name)
                    ahead.append((op.results[at].name, here))
                elif op.kind == "record":  # at a time that no gradient waits for
                    found.update((each, -1, "") for each in nodes)
                elif is_computed(op):
                    here = nodes & {*self._nodes(op)}
                    found.update(self._run(op, each) for each in here)
                    if _may_be_same(op):
                        ahead.append((op.name, here))
        return found

    def _before(self, value: str, node: str) -> int:
        """What is over when the node has the value, of an op that was followed."""
        while (value, node) in self._same:
            value = self._same[value, node]
        op = self._graph.producers[value]
        if node not in self._nodes(op):
            return 0  # of which a conversion makes zeros here
        if is_computed(op):
            return self._ready[self._run(op, node)]
        return self._there[value, node]

    def _run(self, op: Op, node: str) -> Run:
        return node, op.attrs["segment"], self._graph.devices(op)

    def _follow(self, op: Op, node: str) -> None:
        """Learn what is over before the op's results are on the node."""
        if op.kind == "send":  # it goes when all that is in it is there
            edge = op.attrs["edge"], node
            self._sent[edge] = self._before_all(op.operands, node)
        elif op.kind == "listen_and_serv":
            edge = op.attrs["edge"]
            send = self._graph.sends[edge]
            for at, value in enumerate(op.results):
                over = 0
                for source in self._sources(send, op, at, node):
                    over |= self._sent[edge, source]
                self._there[value.name, node] = over
        elif is_computed(op):
            self._follow_computed(op, node)
        elif op.kind == TOGETHER["R"]:
            self._there[op.name, node] = (
                0  # the first microbatch has it before the rest
            )
        elif op.kind in COPIES:
            for name, value in zip(op.operands, op.results, strict=True):
                self._there[value.name, node] = self._before(name, node)
        elif op.results:
            over = self._before_all(op.operands, node)
            self._there.update(((value.name, node), over) for value in op.results)

    def _follow_computed(self, op: Op, node: str) -> None:
        """Its run waits for what the op takes, and so do the results of all others."""
        graph, run = self._graph, self._run(op, node)
        bit = self._bits.setdefault(run, 1 << len(self._bits))
        names = [
            name
            for name in taken(graph, node, op)
            if node in self._nodes(graph.producers[name])
        ]
        if _may_be_same(op) and len(names) == 1:
            self._same[op.name, node] = names[0]  # which is there before the run
        over = self._ready.get(run, bit | self._bits[node])
        for name in names:
            kind = graph.values[name].type
            if not (isinstance(kind, ResidualType) and not kind.parts):
                over |= self._before(name, node)
        self._ready[run] = over

    def _before_all(self, names: tuple[str, ...], node: str) -> int:
        over = 0
        for name in names:
            over |= self._before(name, node)
        return over

    def _sources(self, send: Op, listen: Op, at: int, node: str) -> list[str]:
        key = send.attrs["edge"], at
        if key not in self._ways:
            graph = self._graph
            operand, result = graph.values[send.operands[at]], listen.results[at]
            assert operand.layout is not None
            assert result.layout is not None
            layouts = operand.layout, result.layout
            nodes = self._nodes(send), self._nodes(listen)
            workers = graph.cluster.workers
            self._ways[key] = Conversion(layouts, *nodes, graph.batch, workers)
        return [piece.source for piece in self._ways[key].pieces(node)]

    @cached_property
    def _stored(self) -> set[str]:
        return {op.operands[0] for op in self._graph.of_kind("store")}

    @cached_property
    def _gradients(self) -> dict[str, str]:
        """What the update of each parameter takes."""
        return {
            op.operands[0]: op.operands[1]
            for op in self._graph.ops
            if is_update(op.kind) or is_direction(op.kind)
        }

    @cached_property
    def _positions(self) -> dict[tuple[int, str], int]:
        """Where the values of a message stand in it, as sent and as received."""
        found: dict[tuple[int, str], int] = {}
        for edge, send in self._graph.sends.items():
            received = (value.name for value in self._graph.listens[edge].results)
            for names in (send.operands, received):
                found.update(((edge, name), at) for at, name in enumerate(names))
        return found


_VIEWS = frozenset({"assemble", "cut", *APART.values()})
"""Kinds whose result may lie where their operand does, on the same node."""


def _may_be_same(op: Op) -> bool:
    """Whether the op may leave an operand as it is, for whoever takes its result."""
    return is_conversion(op.kind) or op.kind == "accumulate"
