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
from placer.emit.costs import turn_cost
from placer.emit.host import units
from placer.graph.graph import Graph
from placer.graph.structure import is_computed, is_conversion
from placer.passes.flops import Known


@dataclass(frozen=True, slots=True)
class Turn:
    """A block of a host for one microbatch, None where it runs once a step; and when it
    begins and ends, in declared FLOPs, where that is known."""

    block: str
    microbatch: int | None
    begin: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)

    def __str__(self) -> str:
        number = "" if self.microbatch is None else f".{self.microbatch}"
        return f"{self.block}{number}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The turns of every host that has any, in order."""

    policy: str
    microbatches: int
    turns: Mapping[str, tuple[Turn, ...]]

    def of(self, host: str) -> tuple[str, ...]:
        """A host's turns, as `forward.0` or, of a block that runs once, its name."""
        return tuple(map(str, self.turns.get(host, ())))


def make_schedule(graph: Graph, policy: str) -> Schedule:
    """The schedule of a step, from the last pass's graph."""
    if graph.microbatches == 1:
        return Schedule(policy, 1, {})
    among = {
        host: blocks(graph, units(graph, host)).among
        for host in graph.cluster.all_hosts()
    }
    state = _Simulation(
        graph, {h: found for h, found in among.items() if found}, policy
    )
    state.run()
    turns = {host: tuple(found) for host, found in state.turns.items()}
    return Schedule(policy, graph.microbatches, turns)


_Rank = tuple[int, int]
_Key = tuple[str, int, int | None]
"""A host, a block of it by its number, and the microbatch."""


@dataclass(slots=True)
class _Simulation:
    graph: Graph
    among: Mapping[str, Sequence[Block]]
    policy: str
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    free: dict[str, int] = field(default_factory=dict)
    """When each host has ended all that it began."""
    ready: dict[str, dict[_Key, int]] = field(default_factory=dict)
    """The turns that wait for nothing any more, and since when."""
    missing: dict[_Key, int] = field(default_factory=dict)
    """How many turns each turn still waits for."""
    users: dict[_Key, list[_Key]] = field(default_factory=dict)
    since: dict[_Key, int] = field(default_factory=dict)
    """When the last of those ended that a turn waits for."""
    held: dict[str, int] = field(default_factory=dict)
    """How many microbatches each host has begun and not ended."""

    def run(self) -> None:
        costs = {host: self._costs(host) for host in self.among}
        for host in self.among:
            self.turns[host], self.ready[host] = [], {}
            self.free[host] = self.held[host] = 0
        self._link()
        best = {host: self._best(host, hold=True) for host in self.among}
        while any(self.ready.values()):
            found = [each for each in best.values() if each is not None]
            if not found:  # all hold back, and one begins nevertheless
                found = [
                    e for h in best if (e := self._best(h, hold=False)) is not None
                ]
            begin, _, key = min(found)
            for host in self._take(key, begin, costs[key[0]][key[1]]):
                best[host] = self._best(host, hold=True)
        assert not any(self.missing.values()), "blocks wait for each other in a circle"

    def _take(self, key: _Key, begin: int, cost: int) -> set[str]:
        """Run a turn; gives the hosts for which something is new."""
        host, number, microbatch = key
        end = begin + cost
        del self.ready[host][key]
        self.turns[host].append(
            Turn(self.among[host][number].name, microbatch, begin, end)
        )
        self.free[host] = end
        first, last = self._ends(host)
        self.held[host] += (number == first) - (number == last)
        changed = {host}
        for user in self.users.get(key, ()):
            self.since[user] = max(self.since.get(user, 0), end)
            self.missing[user] -= 1
            if not self.missing[user]:
                self.ready[user[0]][user] = self.since[user]
                changed.add(user[0])
        return changed

    def _best(self, host: str, *, hold: bool) -> tuple[int, _Rank, _Key] | None:
        """What the host does next, and when: of what is ready first, the first by its
        policy."""
        free = self.free[host]
        found = [
            (max(free, since), self._rank(key), key)
            for key, since in self.ready[host].items()
            if not (hold and self._is_held(key))
        ]
        return min(found, default=None)

    def _rank(self, key: _Key) -> _Rank:
        _, number, microbatch = key
        first = number if self.policy == "gpipe" else -number
        return first, -1 if microbatch is None else microbatch

    def _is_held(self, key: _Key) -> bool:
        """Whether the host has begun as many microbatches as it should hold at once."""
        host, number, _ = key
        first, last = self._ends(host)
        if self.policy == "gpipe" or first == last or number != first:
            return False
        levels = [self.among[host][i].level for i in (first, last)]
        return self.held[host] > (levels[1] - levels[0]) // 2

    def _ends(self, host: str) -> tuple[int, int]:
        """The first and the last block of the host that are run for each microbatch."""
        repeated = [i for i, block in enumerate(self.among[host]) if block.repeated]
        return repeated[0], repeated[-1]

    def _costs(self, host: str) -> list[int]:
        known: Known = {}
        return [
            1 + sum(turn_cost(self.graph, op, host, known) for op in block.ops
                    if is_computed(op) and not is_conversion(op.kind))
            for block in self.among[host]
        ]  # fmt: skip

    def _link(self) -> None:
        """What each turn waits for: the block before it on its host, for the same
        microbatch, and who sends it something."""
        sent: dict[int, list[tuple[str, int]]] = {}
        for host, found in self.among.items():
            for number, block in enumerate(found):
                for op in block.ops:
                    if op.kind == "send":
                        sent.setdefault(op.attrs["edge"], []).append((host, number))
        for host, found in self.among.items():
            for number, block in enumerate(found):
                edges = [
                    op.attrs["edge"] for op in block.ops if op.kind == "listen_and_serv"
                ]
                comes = [
                    source
                    for edge in edges
                    for source in sent.get(edge, ())
                    if source[0] != host
                ]
                before = [(host, number - 1)] if number else []
                for m in self._parts(block):
                    key = host, number, m
                    waits = [w for each in (*before, *comes) for w in self._of(each, m)]
                    self.missing[key] = len(waits)
                    for wait in waits:
                        self.users.setdefault(wait, []).append(key)
                    if not waits:
                        self.ready[host][key] = 0

    def _of(self, block: tuple[str, int], microbatch: int | None) -> Iterator[_Key]:
        """The turns of a block that one of this microbatch waits for."""
        host, number = block
        for m in self._parts(self.among[host][number]):
            if microbatch is None or m is None or m == microbatch:
                yield host, number, m

    def _parts(self, block: Block) -> Sequence[int | None]:
        return range(self.graph.microbatches) if block.repeated else (None,)
