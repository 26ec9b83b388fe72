"""Finds the tables that can be updated in place, so that readers need no copies.

An update may overwrite a parameter that other nodes read only after all of them have
finished reading it for this step. The proof: the update waits for the parameter's gradient,
and the gradient waits for every segment, on any node, that uses the parameter. A segment
has read all its inputs when any of its results exists, because a jitted function produces
its results together.

An evaluation between two steps also reads parameters. A node leaves it only after all its
computation there has finished (`Node.batches`). So a node that contributes to the next
step's gradient has finished reading. A node that does not contribute may still evaluate
while others train, so a parameter that it reads cannot be updated in place.
"""

from __future__ import annotations

from functools import cached_property

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import is_conversion
from placer.compiler.schedule.node_classes import NodeClasses
from placer.compiler.schedule.units import operands_on
from placer.place.layouts.moved_pieces import Conversion
from placer.place.types import ResidualType

SegmentRun = tuple[str, int, str]
"""A run of a segment: node, segment number and devices."""


class InPlaceAnalysis:
    """Finds the parameters of a training step that can be updated in place.

    For each value on each node, the analysis computes the set of events that finished
    before the value exists. A set is an integer with one bit for each segment run, and one
    for each node that has started to compute this step. One pass over the ops suffices,
    since each op follows everything that it waits for. A segment that runs for every
    microbatch finishes with the last microbatch; sums and joins over microbatches wait for
    it.

    Only the first two nodes of each class are analyzed. Nodes of a class are
    interchangeable: if one of them waits for something on another, it waits for the same
    on all others.

    Args:
        graph: the step, after the passes `transfer` and `segment`.
        evaluation: the graph of the evaluation between steps, if any.
        node_classes: the classes of nodes in both graphs, if known.
    """

    def __init__(
        self,
        graph: Graph,
        evaluation: Graph | None = None,
        node_classes: NodeClasses | None = None,
    ) -> None:
        self._graph = graph
        both = [graph, *([evaluation] if evaluation is not None else [])]
        self.node_classes = node_classes or NodeClasses(both)
        self._analysed = {
            node for nodes in self.node_classes.classes.values() for node in nodes[:2]
        }
        self._nodes_of: dict[int, tuple[str, ...]] = {}  # by the identity of a place
        self._evaluation: InPlaceAnalysis | None = None
        if evaluation is not None:
            self._evaluation = InPlaceAnalysis(
                evaluation, node_classes=self.node_classes
            )
        self._bits: dict[str | SegmentRun, int] = {}
        for i, node in enumerate(sorted(self._analysed)):
            self._bits[node] = 1 << i
        # By segment run: the events that precede its results.
        self._before_run: dict[SegmentRun, int] = {}
        # By edge and node: the events that precede the node's message.
        self._before_message: dict[tuple[int, str], int] = {}
        # By value and node: the events that precede a value that no segment computes.
        self._before_value: dict[tuple[str, str], int] = {}
        self._conversions: dict[
            tuple[int, int], Conversion
        ] = {}  # by edge and value index
        self._unchanged: dict[tuple[str, str], str] = {}  # values equal to an operand
        for op in graph.ops:
            for node in self._nodes(op):
                self._visit(op, node)
            if op.sent_edge is not None:
                # The op that waits for this reply came earlier: see `send_and_recv`.
                receive = graph.receives[op.sent_edge]
                if receive.sent_edge is not None:
                    for node in self._nodes(receive):
                        self._visit_received(receive, op.sent_edge, node)

    def _nodes(self, op: Op) -> tuple[str, ...]:
        """Return the analyzed nodes of an op, in order."""
        nodes = self._nodes_of.get(id(op.place))
        if nodes is None:
            nodes = tuple(filter(self._analysed.__contains__, self._graph.nodes(op)))
            self._nodes_of[id(op.place)] = nodes
        return nodes

    def can_update_in_place(self, node: str, parameters: list[str]) -> bool:
        """Whether all given parameters can be updated in place on the node.

        Parameters that the step does not store never change, and are ignored.
        """
        node = self.node_classes.representative(node)
        return all(
            name in self._gradients
            and self._has_no_reader(name, self._gradients[name], node)
            for name in self._stored.intersection(parameters)
        )

    def _has_no_reader(self, parameter: str, gradient: str, node: str) -> bool:
        """Whether all readers of the parameter on `node` finish before the gradient."""
        finished = self._finished_before(gradient, node)
        readers = self._readers(parameter, node)
        if not all(finished & self._bits.get(run, 0) for run in readers):
            return False
        if self._evaluation is None:
            return True
        evaluating = {each for each, *_ in self._evaluation._readers(parameter, node)}
        return all(finished & self._bits[each] for each in evaluating - {node})

    def _readers(self, parameter: str, node: str) -> set[SegmentRun]:
        """Return the segment runs, on any node, that read the parameter's memory on `node`."""
        # The search follows the parameter through messages, views and copies, because they
        # may pass the memory on without copying it.
        readers: set[SegmentRun] = set()
        pending = [(parameter, frozenset({node}))]
        while pending:
            name, nodes = pending.pop()
            for op in self._graph.uses.get(name, ()):
                local = nodes & {*self._nodes(op)}
                structure = op.structure
                if op.is_computed:
                    readers.update(self._run_of(op, each) for each in local)
                    if _may_return_operand(op):
                        pending.append((op.name, local))
                elif (edge := op.sent_edge) is not None:
                    listen = self._graph.receives[edge]
                    index = self._positions[edge, name]
                    reached = frozenset(
                        target
                        for target in self._nodes(listen)
                        if nodes & {*self._sources(op, listen, index, target)}
                    )
                    pending.append((listen.results[index].name, reached))
                elif structure.aliases:
                    pending.append((op.name, nodes))
                elif structure.copies:
                    index = op.operands.index(name)
                    pending.append((op.results[index].name, local))
                elif structure.retains:
                    # Recorded values are read later with the metrics, and no gradient
                    # waits for that. A run without a bit makes the proof fail.
                    readers.update((each, -1, "") for each in nodes)
        return readers

    def _finished_before(self, value: str, node: str) -> int:
        """Return the events that precede the value of an already visited op."""
        while (value, node) in self._unchanged:
            value = self._unchanged[value, node]
        op = self._graph.producers[value]
        if node not in self._nodes(op):
            return 0  # a conversion gives the node zeros, without waiting
        if op.is_computed:
            return self._before_run[self._run_of(op, node)]
        return self._before_value[value, node]

    def _run_of(self, op: Op, node: str) -> SegmentRun:
        return node, op.attrs["segment"], self._graph.devices(op)

    def _visit(self, op: Op, node: str) -> None:
        """Compute the events that precede the op's results on the node."""
        structure = op.structure
        if op.is_computed:
            self._visit_computed(op, node)
        elif structure.sends:  # a message is sent once all its values exist
            message = op.attrs["edge"], node
            self._before_message[message] = self._finished_before_all(op.operands, node)
        elif op.received_edge is not None:
            self._visit_received(op, op.received_edge, node)
        elif structure.reduces == "R":
            # The value of the first microbatch exists while the others still run, so
            # it proves nothing.
            self._before_value[op.name, node] = 0
        elif structure.copies:
            for name, value in zip(op.operands, op.results, strict=True):
                finished = self._finished_before(name, node)
                self._before_value[value.name, node] = finished
        elif op.results:
            finished = self._finished_before_all(op.operands, node)
            for value in op.results:
                self._before_value[value.name, node] = finished

    def _visit_received(self, op: Op, edge: int, node: str) -> None:
        send = self._graph.sends[edge]
        for index, value in enumerate(op.results):
            finished = 0
            sources = self._sources(send, op, index, node)
            for source in sources:
                finished |= self._before_message[edge, source]
            if self._graph.layout(send.operands[index]) == "F":
                # Any single source may provide all elements of the value.
                for source in sources:
                    finished &= self._before_message[edge, source]
            self._before_value[value.name, node] = finished

    def _visit_computed(self, op: Op, node: str) -> None:
        """Add the op's prerequisites to its segment run; all results wait for them."""
        graph, run = self._graph, self._run_of(op, node)
        producers, segment = graph.producers, op.attrs["segment"]
        bit = self._bits.setdefault(run, 1 << len(self._bits))
        names = [
            name
            for name in operands_on(graph, node, op)
            if producers[name].place is op.place or node in self._nodes(producers[name])
        ]
        if _may_return_operand(op) and len(names) == 1:
            # The result may be the operand itself, which exists before the run.
            self._unchanged[op.name, node] = names[0]
        finished = self._before_run.get(run, bit | self._bits[node])
        for name in names:
            producer = producers[name]
            same_place = producer.is_computed and producer.place is op.place
            if same_place and producer.attrs["segment"] == segment:
                continue  # part of the same run
            kind = graph.values[name].type
            # An empty residual has no array to wait for at run time.
            if not (isinstance(kind, ResidualType) and not kind.parts):
                finished |= self._finished_before(name, node)
        self._before_run[run] = finished

    def _finished_before_all(self, names: tuple[str, ...], node: str) -> int:
        finished = 0
        for name in names:
            finished |= self._finished_before(name, node)
        return finished

    def _sources(self, send: Op, listen: Op, index: int, node: str) -> list[str]:
        """Return the analyzed nodes that send `node` a piece of a message's value."""
        key = send.attrs["edge"], index
        graph = self._graph
        operand, result = send.operands[index], listen.results[index].name
        layouts = graph.layout(operand), graph.layout(result)
        if "F" in layouts:
            return [*self._nodes(send)]
        if key not in self._conversions:
            nodes = self._nodes(send), self._nodes(listen)
            workers = graph.cluster.workers
            self._conversions[key] = Conversion(layouts, *nodes, graph.batch, workers)
        return [piece.source for piece in self._conversions[key].pieces_for(node)]

    @cached_property
    def _stored(self) -> set[str]:
        return {op.operands[0] for op in self._graph.of_kind("store")}

    @cached_property
    def _gradients(self) -> dict[str, str]:
        """The gradient in the update of each parameter."""
        return {
            op.operands[0]: op.operands[1]
            for op in self._graph.ops
            if op.structure.update
        }

    @cached_property
    def _positions(self) -> dict[tuple[int, str], int]:
        """The index of each value in its edge's message, by sent and by received name."""
        positions: dict[tuple[int, str], int] = {}
        for edge, send in self._graph.sends.items():
            received = (value.name for value in self._graph.receives[edge].results)
            for names in (send.operands, received):
                positions.update(((edge, name), i) for i, name in enumerate(names))
        return positions


def _may_return_operand(op: Op) -> bool:
    """Whether the op's result may be one of its operands, unchanged."""
    return is_conversion(op.kind) or op.kind == "accumulate"
