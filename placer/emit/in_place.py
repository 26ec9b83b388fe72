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

from collections.abc import Iterable
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
        self._ready: dict[Run, frozenset[Run]] = {}
        self._sent: dict[tuple[int, str], frozenset[Run]] = {}

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
                    at = self._positions[op.attrs["edge"], name]
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
        op = self._graph.producers[value]
        if host not in self._graph.hosts(op):
            return frozenset()  # of which a conversion makes zeros here
        if op.kind == "listen_and_serv":
            send = self._sends[op.attrs["edge"]]
            at = self._positions[op.attrs["edge"], value]
            return _all(
                self._before_sent(send, source)
                for source in self._sources(send, op, at, host)
            )
        if is_computed(op):
            return self._before_ready((host, op.attrs["segment"]))
        return _all(self._before(name, host) for name in op.operands)

    def _before_sent(self, send: Op, source: str) -> frozenset[Run]:
        """Those that are over when a message is sent: all that is in it is there."""
        message = send.attrs["edge"], source
        if message not in self._sent:
            self._sent[message] = frozenset()  # a circle is none: values are ordered
            self._sent[message] = _all(self._before(v, source) for v in send.operands)
        return self._sent[message]

    def _before_ready(self, run: Run) -> frozenset[Run]:
        """Those that are over when the results of one are ready: itself too."""
        if run not in self._ready:
            self._ready[run] = frozenset({run})
            taken = (self._before(name, run[0]) for name in self._taken[run])
            self._ready[run] |= _all(taken)
        return self._ready[run]

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
    def _positions(self) -> dict[tuple[int, str], int]:
        """Where the values of a message stand in it, as sent and as received."""
        found: dict[tuple[int, str], int] = {}
        for edge, send in self._sends.items():
            received = (value.name for value in self._listens[edge].results)
            for names in (send.operands, received):
                found.update(((edge, name), at) for at, name in enumerate(names))
        return found

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


def _all(sets: Iterable[frozenset[Run]]) -> frozenset[Run]:
    return frozenset().union(*sets)
