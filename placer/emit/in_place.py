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

from collections.abc import Iterator
from functools import cached_property

from placer.graph.graph import Graph, Op
from placer.graph.rows import pieces
from placer.graph.structure import is_computed, is_direction, is_update

Run = tuple[str, int]
"""A host, and the segment that it runs."""


class Readers:
    """Who reads the parameters of a transferred, segmented step, and when.

    `evaluation` is the graph of what follows some of the steps, if anything does.
    """

    def __init__(self, graph: Graph, evaluation: Graph | None = None) -> None:
        self._graph = graph
        self._evaluation = Readers(evaluation) if evaluation is not None else None
        self._known: dict[tuple[str, str], frozenset[Run]] = {}

    def in_place(self, host: str, blocks: list[str]) -> bool:
        """Whether these parameters of the host, if they change, may do so in place."""
        here = self._graph.on(host)
        stored = {op.operands[0] for op in here if op.kind == "store"}
        gradients = {
            op.operands[0]: op.operands[1]
            for op in here
            if is_update(op.kind) or is_direction(op.kind)
        }
        return all(
            name in gradients and self._are_over(name, gradients[name], host)
            for name in stored.intersection(blocks)
        )

    def _are_over(self, parameter: str, gradient: str, host: str) -> bool:
        """Whether nobody reads what `host` holds once it has the gradient."""
        before = self._before(gradient, host)
        if not self._uses(parameter, host) <= before:
            return False
        if self._evaluation is None:
            return True
        evaluate = {each for each, _ in self._evaluation._uses(parameter, host)}
        return evaluate <= {host, *(each for each, _ in before)}

    def _uses(self, parameter: str, host: str) -> set[Run]:
        """Every segment, on any host, that takes the values that `host` holds."""
        found: set[Run] = set()
        ahead = [(parameter, frozenset({host}))]
        while ahead:
            name, hosts = ahead.pop()
            for op in self._graph.uses.get(name, ()):
                if op.kind == "send":
                    listen = self._listens[op.attrs["edge"]]
                    at = op.operands.index(name)
                    reached = frozenset(
                        target
                        for target in self._graph.hosts(listen)
                        if hosts & {*self._sources(op, listen, at, target)}
                    )
                    ahead.append((listen.results[at].name, reached))
                elif op.kind in ("assemble", "cut"):
                    ahead.append((op.name, hosts))
                elif op.kind == "record":  # at a time that no gradient waits for
                    found.update((each, -1) for each in hosts)
                elif is_computed(op):
                    here = hosts & {*self._graph.hosts(op)}
                    found.update((each, op.attrs["segment"]) for each in here)
        return found

    def _before(self, value: str, host: str) -> frozenset[Run]:
        """The segments that are over when the host has the value."""
        key = value, host
        if key not in self._known:
            self._known[key] = frozenset()  # a circle is none: values are ordered
            self._known[key] = frozenset(self._found(value, host))
        return self._known[key]

    def _found(self, value: str, host: str) -> Iterator[Run]:
        op = self._graph.producers[value]
        if host not in self._graph.hosts(op):  # of which a conversion makes zeros here
            return
        if op.kind == "listen_and_serv":
            send = self._sends[op.attrs["edge"]]
            at = [result.name for result in op.results].index(value)
            for source in self._sources(send, op, at, host):
                # A message goes when all that is in it is there.
                for operand in send.operands:
                    yield from self._before(operand, source)
            return
        operands = op.operands
        if is_computed(op):
            run = host, op.attrs["segment"]
            yield run
            operands = self._taken[run]
        for name in operands:
            yield from self._before(name, host)

    def _sources(self, send: Op, listen: Op, at: int, host: str) -> list[str]:
        graph = self._graph
        operand, result = graph.values[send.operands[at]], listen.results[at]
        assert operand.layout is not None
        assert result.layout is not None
        layouts = operand.layout, result.layout
        found = pieces(
            layouts, graph.hosts(send), graph.hosts(listen), host, graph.batch
        )
        return [piece.source for piece in found]

    @cached_property
    def _sends(self) -> dict[int, Op]:
        return {op.attrs["edge"]: op for op in self._graph.of_kind("send")}

    @cached_property
    def _listens(self) -> dict[int, Op]:
        return {op.attrs["edge"]: op for op in self._graph.of_kind("listen_and_serv")}

    @cached_property
    def _taken(self) -> dict[Run, tuple[str, ...]]:
        """What each segment of a host takes from outside itself."""
        made: dict[Run, dict[str, None]] = {}
        taken: dict[Run, dict[str, None]] = {}
        for op in self._graph.ops:
            if not is_computed(op):
                continue
            for host in self._graph.hosts(op):
                run = host, op.attrs["segment"]
                made.setdefault(run, {}).update({v.name: None for v in op.results})
                taken.setdefault(run, {}).update(dict.fromkeys(op.operands))
        return {
            run: tuple(name for name in names if name not in made[run])
            for run, names in taken.items()
        }
