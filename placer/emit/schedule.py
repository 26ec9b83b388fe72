"""In what order each host runs its blocks for the microbatches of a step.

Found by going through a step as if every block took as long as its declared FLOPs say.
`gpipe` runs what comes first for all microbatches (Huang et al. 2019); `1f1b` goes on
with the microbatch that has come furthest, and holds no more of them than are needed to
keep all hosts at work (PipeDream: Narayanan et al. 2019, 2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from placer.emit.blocks import Block, blocks
from placer.emit.host import units
from placer.graph.graph import Graph
from placer.graph.structure import is_computed, is_conversion
from placer.passes.flops import Known, flops

POLICIES = ("1f1b", "gpipe")

Turn = tuple[int, int]
"""A block of a host, by its number, and the microbatch; -1 where it is run once."""
Run = tuple[str, Turn]


def schedules(
    graph: Graph, among: Mapping[str, Sequence[Block]], policy: str
) -> dict[str, tuple[str, ...]]:
    """The turns of every host, as `forward.0` or, of a block that is run once, its name."""
    state = _Simulation(graph, among, policy)
    state.run()
    return {
        host: tuple(_text(among[host][number].name, m) for number, m in turns)
        for host, turns in state.turns.items()
    }


def turns_of(graph: Graph, policy: str) -> dict[str, tuple[str, ...]]:
    """The turns of every host that has any, of the last pass's graph."""
    if graph.microbatches == 1:
        return {}
    among = {
        host: blocks(graph, units(graph, host)).among
        for host in graph.cluster.all_hosts()
    }
    return schedules(
        graph, {host: found for host, found in among.items() if found}, policy
    )


def _text(name: str, microbatch: int) -> str:
    return name if microbatch < 0 else f"{name}.{microbatch}"


@dataclass(slots=True)
class _Simulation:
    graph: Graph
    among: Mapping[str, Sequence[Block]]
    policy: str
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    ended: dict[Run, int] = field(default_factory=dict)
    """When each turn ends."""
    free: dict[str, int] = field(default_factory=dict)
    """When each host has ended all that it began."""

    def run(self) -> None:
        costs = {host: self._costs(host) for host in self.among}
        waits = self._waits()
        left = {host: list(self._all(host)) for host in self.among}
        for host in self.among:
            self.turns[host], self.free[host] = [], 0
        while any(left.values()):
            host, turn, begin = self._next(left, waits)
            left[host].remove(turn)
            self.turns[host].append(turn)
            end = begin + costs[host][turn[0]]
            self.ended[host, turn] = self.free[host] = end

    def _next(
        self, left: Mapping[str, Sequence[Turn]], waits: Mapping[Run, Sequence[Run]]
    ) -> tuple[str, Turn, int]:
        """Of all hosts, the turn that begins first, the host's best of those that are
        ready by then. Where all hold back, one begins nevertheless."""
        for held in (True, False):
            found: list[tuple[int, tuple[int, int], str, Turn]] = []
            for host, turns in left.items():
                ready = [
                    (max(self.free[host], self._ready(host, turn, waits)), turn)
                    for turn in turns
                    if self._is_known(host, turn, waits)
                    and not (held and self._is_held(host, turn))
                ]
                if ready:
                    begin = min(at for at, _ in ready)
                    now = [turn for at, turn in ready if at == begin]
                    best = min(now, key=self._rank)
                    found.append((begin, self._rank(best), host, best))
            if found:
                begin, _, host, turn = min(found)
                return host, turn, begin
        raise AssertionError("blocks wait for each other in a circle")

    def _is_known(
        self, host: str, turn: Turn, waits: Mapping[Run, Sequence[Run]]
    ) -> bool:
        return all(run in self.ended for run in waits[host, turn])

    def _ready(self, host: str, turn: Turn, waits: Mapping[Run, Sequence[Run]]) -> int:
        return max((self.ended[run] for run in waits[host, turn]), default=0)

    def _rank(self, turn: Turn) -> tuple[int, int]:
        number, microbatch = turn
        return (number if self.policy == "gpipe" else -number), microbatch

    def _is_held(self, host: str, turn: Turn) -> bool:
        """Whether the host has begun as many microbatches as it should hold at once."""
        repeated = [i for i, block in enumerate(self.among[host]) if block.repeated]
        first, last = repeated[0], repeated[-1]
        if self.policy == "gpipe" or first == last or turn[0] != first:
            return False
        levels = [self.among[host][i].level for i in (first, last)]
        begun = sum(number == first for number, _ in self.turns[host])
        ended = sum(number == last for number, _ in self.turns[host])
        return begun - ended > (levels[1] - levels[0]) // 2

    def _all(self, host: str) -> Iterator[Turn]:
        for number, block in enumerate(self.among[host]):
            if block.repeated:
                yield from ((number, m) for m in range(self.graph.microbatches))
            else:
                yield number, -1

    def _costs(self, host: str) -> list[int]:
        known: Known = {}
        rows = max(1, self.graph.batch // self.graph.microbatches)
        return [
            1 + sum(flops(self.graph, op, rows, known) for op in block.ops
                    if is_computed(op) and not is_conversion(op.kind))
            for block in self.among[host]
        ]  # fmt: skip

    def _waits(self) -> dict[Run, list[Run]]:
        """What each turn waits for: on its host all that comes before it for the same
        microbatch, and who sends it something."""
        sent: dict[int, list[tuple[str, int]]] = {}
        for host, found in self.among.items():
            for number, block in enumerate(found):
                for op in block.ops:
                    if op.kind == "send":
                        sent.setdefault(op.attrs["edge"], []).append((host, number))
        waits: dict[Run, list[Run]] = {}
        for host, found in self.among.items():
            for turn in self._all(host):
                number, microbatch = turn
                earlier = [other for other in self._all(host) if other[0] < number]
                mine = [
                    (host, other)
                    for other in earlier
                    if -1 in (microbatch, other[1]) or other[1] == microbatch
                ]
                comes = [
                    (source, (at, microbatch))
                    for op in found[number].ops
                    if op.kind == "listen_and_serv"
                    for source, at in sent.get(op.attrs["edge"], ())
                    if source != host
                ]
                waits[host, turn] = mine + comes
        return waits
