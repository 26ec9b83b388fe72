"""In what order each node runs its blocks for the microbatches of a step.

Found by going through a step as if every block took as long as its declared FLOPs say,
and the devices of a node worked side by side, each on one block at a time. `gpipe` runs what comes first for all microbatches (Huang et al. 2019); `1f1b` goes on
with the microbatch that has come furthest, and holds no more of them than are needed to
keep all at work (PipeDream: Narayanan et al. 2019, 2021).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

from placer.analysis.costs import turn_cost
from placer.analysis.flops import Known
from placer.analysis.node_classes import Alike
from placer.analysis.tasks import Block, Blocks, blocks
from placer.analysis.units import units
from placer.errors import GraphError
from placer.graph.graph import Graph, Op
from placer.graph.kinds import is_computed, is_conversion
from placer.place import Location


@dataclass(frozen=True, slots=True)
class Turn:
    """A block of a node for one microbatch, None where it runs once a step; and when it
    begins and ends, in declared FLOPs, and on which devices, where that is known."""

    block: str
    microbatch: int | None
    begin: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)
    devices: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        number = "" if self.microbatch is None else f".{self.microbatch}"
        return f"{self.block}{number}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The turns of every node that has any, in the order in which they begin."""

    policy: str
    microbatches: int
    turns: Mapping[str, tuple[Turn, ...]]

    def of(self, node: str) -> tuple[str, ...]:
        """A node's turns, as `forward.0` or, of a block that runs once, its name."""
        return tuple(map(str, self.turns.get(node, ())))


def make_schedule(graph: Graph, policy: str) -> Schedule:
    """The schedule of a step, from the last pass's graph."""
    if graph.microbatches == 1:
        return Schedule(policy, 1, {})
    alike = Alike([graph])
    of_class = {node: blocks(graph, units(graph, node)) for node in alike.classes}
    nodes = graph.cluster.all_nodes()
    steps = {node: of_class[alike.first(node)] for node in nodes}
    state = _Simulation(graph, alike, steps, policy)
    state.run()
    turns = {node: tuple(found) for node, found in state.turns.items()}
    return Schedule(policy, graph.microbatches, turns)


_Rank = tuple[int, int]
_Key = tuple[str, int, int | None]
"""A node, a block of it by its number, and the microbatch; or a message by its edge."""
_MESSAGE = ""


@dataclass(frozen=True, slots=True)
class _Work:
    """What a turn of a block takes: so long, of all of these devices."""

    cost: int
    devices: tuple[str, ...]
    at: frozenset[Location]

    def on(self, node: str) -> _Work:
        """The same on a node that is alike."""
        number = int(node.partition(":")[2])
        at = frozenset(replace(device, node_id=number) for device in self.at)
        return _Work(self.cost, self.devices, at)


@dataclass(slots=True)
class _Stage:
    """Blocks of a node, or of some devices of it, by the first and the last that are run
    for each microbatch; and of how many the first has been run and the last has not.
    `most` are needed to keep all at work."""

    first: int
    last: int
    most: int
    held: int = 0


@dataclass(slots=True)
class _Simulation:
    graph: Graph
    alike: Alike
    steps: Mapping[str, Blocks]
    policy: str
    among: dict[str, Sequence[Block]] = field(default_factory=dict)
    """The blocks that take turns, of the nodes that have any."""
    stages: dict[str, Sequence[_Stage]] = field(default_factory=dict)
    """Of each node those that hold back."""
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    work: dict[str, Sequence[_Work]] = field(default_factory=dict)
    free: dict[Location, int] = field(default_factory=dict)
    """When each device has ended all that it began."""
    ready: dict[str, dict[_Key, int]] = field(default_factory=dict)
    """The turns that wait for nothing any more, and since when."""
    missing: dict[_Key, int] = field(default_factory=dict)
    """How many turns each turn still waits for."""
    users: dict[_Key, list[_Key]] = field(default_factory=dict)
    since: dict[_Key, int] = field(default_factory=dict)
    """When the last of those ended that a turn waits for."""

    def run(self) -> None:
        for node, step in self.steps.items():
            if any(block.repeated for block in step.among):
                self.among[node] = step.among
        for node, found in self.among.items():
            first = self.alike.first(node)
            if node == first:
                known: Known = {}
                self.work[node] = [self._work(node, block, known) for block in found]
            else:
                self.work[node] = [work.on(node) for work in self.work[first]]
            self.stages[node] = self._stages(node) if self.policy == "1f1b" else ()
            self.turns[node], self.ready[node] = [], {}
        self._link()
        best = {node: self._best(node, hold=True) for node in self.among}
        begun = [each for each in best.values() if each is not None]
        heapify(begun)  # with some that are no node's best any more
        while True:
            while begun and best[begun[0][2][0]] != begun[0]:
                heappop(begun)
            if begun:
                chosen = heappop(begun)
            else:  # all hold back, and one begins nevertheless
                held = [self._best(node, hold=False) for node in best]
                waiting = [each for each in held if each is not None]
                if not waiting:
                    break
                chosen = min(waiting)
            begin, _, key = chosen
            for node in self._take(key, begin):
                best[node] = new = self._best(node, hold=True)
                if new is not None:
                    heappush(begun, new)
        for (node, number, microbatch), missing in self.missing.items():
            if missing and node != _MESSAGE:
                raise self._circle(node, number, microbatch)

    def _circle(self, node: str, number: int, microbatch: int | None) -> GraphError:
        """A turn that waits for something that waits for it."""
        block = self.among[node][number]
        op = next((op for op in block.ops if op.source is not None), None)
        return GraphError(
            f"{node} cannot run '{Turn(block.name, microbatch)}': it waits for nodes that"
            " wait for it",
            span=op.source if op is not None else None,
            hint="place the ops so that microbatches pass each node once, or leave"
            " train.microbatches out",
        )

    def _take(self, key: _Key, begin: int) -> set[str]:
        """Run a turn; gives the nodes for which something is new."""
        node, number, microbatch = key
        work = self.work[node][number]
        end = begin + work.cost
        del self.ready[node][key]
        name = self.among[node][number].name
        self.turns[node].append(Turn(name, microbatch, begin, end, work.devices))
        self.free.update(dict.fromkeys(work.at, end))
        for stage in self.stages[node]:
            stage.held += (number == stage.first) - (number == stage.last)
        changed = {node}
        ahead = [key]
        while ahead:
            for user in self.users.get(ahead.pop(), ()):
                self.since[user] = max(self.since.get(user, 0), end)
                self.missing[user] -= 1
                if self.missing[user]:
                    continue
                if user[0] == _MESSAGE:
                    ahead.append(user)  # `end` is when the last of its senders ends
                else:
                    self.ready[user[0]][user] = self.since[user]
                    changed.add(user[0])
        return changed

    def _best(self, node: str, *, hold: bool) -> tuple[int, _Rank, _Key] | None:
        """What the node does next, and when: of what is ready first, the first by its
        policy."""
        free, work = self.free, self.work[node]
        found = [
            (
                max(since, *(free.get(d, 0) for d in work[key[1]].at)),
                self._rank(key),
                key,
            )
            for key, since in self.ready[node].items()
            if not (hold and self._is_held(key))
        ]
        return min(found, default=None)

    def _rank(self, key: _Key) -> _Rank:
        _, number, microbatch = key
        first = number if self.policy == "gpipe" else -number
        return first, -1 if microbatch is None else microbatch

    def _is_held(self, key: _Key) -> bool:
        """Whether as many microbatches have begun as should be held at once."""
        node, number, _ = key
        return any(
            number == stage.first and stage.held >= stage.most
            for stage in self.stages[node]
        )

    def _stages(self, node: str) -> list[_Stage]:
        """The node as a whole, and each set of devices."""
        found, work = self.among[node], self.work[node]
        repeated = [i for i, block in enumerate(found) if block.repeated]
        groups = [repeated]
        for at in dict.fromkeys(work[i].at for i in repeated):
            groups.append([i for i in repeated if work[i].at == at])
        return [
            _Stage(g[0], g[-1], 1 + (found[g[-1]].level - found[g[0]].level) // 2)
            for g in groups
            if g[0] != g[-1]
        ]

    def _work(self, node: str, block: Block, known: Known) -> _Work:
        """What a turn takes. Ops of a block on different devices do not wait for each
        other."""
        graph = self.graph
        computed = [
            op for op in block.ops if is_computed(op) and not is_conversion(op.kind)
        ]
        costs: dict[str, int] = {}
        at: set[Location] = set()
        for op in computed or [*block.ops, *block.totals]:
            assert op.place is not None
            kind, _, number = node.partition(":")
            found = [
                Location(kind, int(number), str(op.place.device), each)
                for each in graph.cluster.device_ids(op.place)
            ]
            cost = turn_cost(graph, op, node, known) if computed else 0
            devices = graph.devices(op)
            costs[devices] = costs.get(devices, 0) + -(-cost // len(found))
            at.update(found)
        return _Work(1 + max(costs.values()), tuple(costs), frozenset(at))

    def _link(self) -> None:
        """What each turn waits for: the block before it on its node, for the same
        microbatch, its own for the one before, and who sends it something."""
        sources = self._sources()
        sending = {edge: {node for node, _ in found} for edge, found in sources.items()}
        for node, found in self.among.items():
            for number, block in enumerate(found):
                edges = _edges(block.ops, "listen_and_serv")
                if number == 0:  # what is taken once, ahead of all microbatches
                    edges += _edges(self.steps[node].before.ops, "listen_and_serv")
                comes = [edge for edge in edges if sources.get(edge)]
                mine = {edge for edge in comes if node in sending[edge]}
                before = {(node, number - 1)} if number else set()
                for edge in mine:  # of its own what it does before, and of others
                    before |= {
                        source
                        for source in sources[edge]
                        if source < (node, number) or source[0] != node
                    }
                for m in self._parts(block):
                    key = node, number, m
                    waits = [w for each in before for w in self._of(each, m)]
                    waits += (
                        self._all_of(e, m, sources) for e in comes if e not in mine
                    )
                    if m:
                        waits.append((node, number, m - 1))
                    self.missing[key] = len(waits)
                    for wait in waits:
                        self.users.setdefault(wait, []).append(key)
                    if not waits:
                        self.ready[node][key] = 0

    def _all_of(
        self,
        edge: int,
        microbatch: int | None,
        sources: Mapping[int, Iterable[tuple[str, int]]],
    ) -> _Key:
        """What stands for all turns that a message waits for: every node that takes it
        waits for this one, and not for each of them."""
        key = _MESSAGE, edge, microbatch
        if key not in self.missing:
            waits = [w for block in sources[edge] for w in self._of(block, microbatch)]
            self.missing[key] = len(waits)
            for wait in waits:
                self.users.setdefault(wait, []).append(key)
        return key

    def _sources(self) -> dict[int, set[tuple[str, int]]]:
        """The blocks that come before each message: those that send it, and where it is
        sent before or after the microbatches of a node, what comes before that."""
        found: dict[int, set[tuple[str, int]]] = {}
        behind: dict[int, set[int]] = {}  # messages that were taken before one is sent
        for node, step in self.steps.items():
            for number, block in enumerate(step.among):
                for edge in _edges(block.ops, "send"):
                    found.setdefault(edge, set()).add((node, number))
            last = {(node, len(step.among) - 1)} if step.among else set()
            for ops, come in ((step.before.ops, set()), (step.after.ops, last)):
                taken: set[int] = set()
                for op in ops:
                    if op.kind == "send":
                        found.setdefault(op.attrs["edge"], set()).update(come)
                        behind.setdefault(op.attrs["edge"], set()).update(taken)
                    elif op.kind == "listen_and_serv":
                        taken.add(op.attrs["edge"])
        # A message has a greater number than those that come before it.
        for edge in sorted(behind):
            for before in behind[edge]:
                found[edge] |= found.get(before, set())
        return found

    def _of(self, block: tuple[str, int], microbatch: int | None) -> Iterator[_Key]:
        """The turns of a block that one of this microbatch waits for."""
        node, number = block
        for m in self._parts(self.among[node][number]):
            if microbatch is None or m is None or m == microbatch:
                yield node, number, m

    def _parts(self, block: Block) -> Sequence[int | None]:
        return range(self.graph.microbatches) if block.repeated else (None,)


def _edges(ops: Iterable[Op], kind: str) -> list[int]:
    """The messages of the ops of a kind."""
    return [op.attrs["edge"] for op in ops if op.kind == kind]
