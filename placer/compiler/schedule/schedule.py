"""The order in which each node runs its tasks for the microbatches of a step.

The schedule comes from a simulation of one step. It assumes that a task takes as long
as its declared FLOPs, and that the devices of a node work side by side, each on one
task at a time. Of the tasks that are ready, `gpipe` runs the first task of the step, so
that it runs all forward tasks before the backward tasks (Huang et al. 2019). `1f1b`
runs the last task, which goes on with the microbatch that has come furthest, and starts
no more microbatches than are needed to keep all devices busy (PipeDream: Narayanan et
al. 2019, 2021).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from placer.compiler.graph.flops import FlopsCache
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import is_conversion
from placer.compiler.schedule.costs import task_cost
from placer.compiler.schedule.node_classes import NodeClasses
from placer.compiler.schedule.tasks import NodeStep, Task, split_into_tasks
from placer.compiler.schedule.units import units_on
from placer.errors import GraphError


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """One run of a task, for a microbatch, or once a step if `microbatch` is None.

    `start` and `end` are the times of the simulation, in declared FLOPs, and `devices`
    are those that it uses. All are unknown, and not compared, for a schedule that was
    parsed from text.
    """

    task: str
    microbatch: int | None
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)
    devices: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        number = "" if self.microbatch is None else f".{self.microbatch}"
        return f"{self.task}{number}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The scheduled tasks of each node that has any, in the order of their start."""

    policy: str
    microbatches: int
    tasks: Mapping[str, tuple[ScheduledTask, ...]]

    def task_names(self, node: str) -> tuple[str, ...]:
        """Return a node's tasks as text: `forward.0`, or `totals` if it runs once."""
        return tuple(map(str, self.tasks.get(node, ())))


def make_schedule(graph: Graph, policy: str) -> Schedule:
    """Return the schedule of a step, given its graph after the last pass.

    `policy` is `1f1b` or `gpipe`. The schedule of a step without microbatches is empty.
    Raises GraphError if tasks of different nodes wait for each other.
    """
    if graph.microbatches == 1:
        return Schedule(policy, 1, {})
    node_classes = NodeClasses([graph])
    of_class = {
        node: split_into_tasks(graph, units_on(graph, node))
        for node in node_classes.classes
    }
    nodes = graph.cluster.all_nodes()
    steps: dict[str, NodeStep] = {
        node: of_class[node_classes.representative(node)] for node in nodes
    }
    scheduled = {node: step.tasks for node, step in steps.items() if step.tasks}
    simulation = _Simulation(graph, node_classes, steps, policy, scheduled)
    simulation.run()
    tasks = {node: tuple(runs) for node, runs in simulation.runs.items()}
    return Schedule(policy, graph.microbatches, tasks)


_Rank = tuple[int, int]
_Run = tuple[str, int, int | None]
"""A run of a task: the node, the task's number and the microbatch. Or a message, which
has _MESSAGE in place of the node, and the edge in place of the task."""
_MESSAGE = ""


@dataclass(frozen=True, slots=True)
class _Work:
    """What one run of a task needs: `cost` FLOPs of time on all of `devices`.

    `groups` are the sets of devices that compute together, such as `gpu:0-1`.
    """

    cost: int
    groups: tuple[str, ...]
    devices: frozenset[str]


@dataclass(slots=True)
class _Stage:
    """A pipeline stage, a node or some of its devices, with its limit of microbatches.

    `first` and `last` are the numbers of its first and last repeated tasks. `in_flight`
    is the number of microbatches for which the first has run and the last has not;
    `limit` is how many of them are enough to keep all stages busy.
    """

    first: int
    last: int
    limit: int
    in_flight: int = 0


@dataclass(slots=True)
class _Simulation:
    graph: Graph
    node_classes: NodeClasses
    steps: Mapping[str, NodeStep]
    policy: str
    tasks: Mapping[str, Sequence[Task]]
    """The tasks to schedule, of each node that has any."""
    stages: dict[str, Sequence[_Stage]] = field(default_factory=dict)
    """The stages of each node that limit microbatches in flight."""
    runs: dict[str, list[ScheduledTask]] = field(default_factory=dict)
    """The result: the runs of each node so far, in the order in which they start."""
    work: dict[str, Sequence[_Work]] = field(default_factory=dict)
    free: dict[tuple[str, str], int] = field(default_factory=dict)
    """When each device of each node finishes its last run so far."""
    ready: dict[str, dict[_Run, int]] = field(default_factory=dict)
    """The runs of each node that wait for no other run, and since when."""
    missing: dict[_Run, int] = field(default_factory=dict)
    """The number of runs that each run still waits for."""
    waiting: dict[_Run, list[_Run]] = field(default_factory=dict)
    """The runs that wait for each run."""
    since: dict[_Run, int] = field(default_factory=dict)
    """When the latest run ended that each run has waited for."""

    def run(self) -> None:
        """Simulate the step. Raises GraphError if runs wait for each other."""
        cache = FlopsCache()
        for node, tasks in self.tasks.items():
            first = self.node_classes.representative(node)
            if node == first:
                self.work[node] = [self._work_of(node, task, cache) for task in tasks]
            self.work[node] = self.work[first]
            self.stages[node] = self._stages_of(node) if self.policy == "1f1b" else ()
            self.runs[node], self.ready[node] = [], {}
        self._link()
        best = {node: self._best_run(node, limit=True) for node in self.tasks}
        # The heap keeps outdated entries: only those equal to `best` count.
        heap = [candidate for candidate in best.values() if candidate is not None]
        heapify(heap)
        while True:
            while heap and best[heap[0][2][0]] != heap[0]:
                heappop(heap)
            if heap:
                chosen = heappop(heap)
            else:
                # All nodes are at their limits, or nothing is ready. In the first case
                # the limits would stop the step for ever, so one run ignores them.
                unlimited = [self._best_run(node, limit=False) for node in best]
                candidates = [each for each in unlimited if each is not None]
                if not candidates:
                    break
                chosen = min(candidates)
            start, _, run = chosen
            for node in self._start(run, start):
                best[node] = new = self._best_run(node, limit=True)
                if new is not None:
                    heappush(heap, new)
        for (node, number, microbatch), missing in self.missing.items():
            if missing and node != _MESSAGE:
                raise self._deadlock(node, number, microbatch)

    def _deadlock(self, node: str, number: int, microbatch: int | None) -> GraphError:
        """The error for a run that waits for a run that waits for it."""
        task = self.tasks[node][number]
        op = next((op for op in task.ops if op.source is not None), None)
        return GraphError(
            f"{node} cannot run '{ScheduledTask(task.name, microbatch)}': it waits for"
            " nodes that wait for it",
            span=op.source if op is not None else None,
            hint="place the ops so that microbatches pass each node once, or leave"
            " train.microbatches out",
        )

    def _start(self, run: _Run, start: int) -> set[str]:
        """Start a run at a time; return the nodes whose best next run may change."""
        node, number, microbatch = run
        work = self.work[node][number]
        end = start + work.cost
        del self.ready[node][run]
        name = self.tasks[node][number].name
        self.runs[node].append(ScheduledTask(name, microbatch, start, end, work.groups))
        self.free.update(((node, each), end) for each in work.devices)
        for stage in self.stages[node]:
            stage.in_flight += (number == stage.first) - (number == stage.last)
        changed = {node}
        finished = [run]
        while finished:
            for user in self.waiting.get(finished.pop(), ()):
                self.since[user] = max(self.since.get(user, 0), end)
                self.missing[user] -= 1
                if self.missing[user]:
                    continue
                if user[0] == _MESSAGE:
                    finished.append(user)  # at `end`, when its last sender ends
                else:
                    self.ready[user[0]][user] = self.since[user]
                    changed.add(user[0])
        return changed

    def _best_run(self, node: str, *, limit: bool) -> tuple[int, _Rank, _Run] | None:
        """The node's next run, with its time and rank: the earliest, then by policy.

        With `limit`, starts no microbatch in a stage that has enough in flight.
        """
        full = {
            stage.first
            for stage in self.stages[node]
            if limit and stage.in_flight >= stage.limit
        }
        candidates = []
        for run, since in self.ready[node].items():
            _, number, microbatch = run
            if number in full:
                continue
            devices = self.work[node][number].devices
            start = max(since, *(self.free.get((node, each), 0) for each in devices))
            task = number if self.policy == "gpipe" else -number
            rank = task, -1 if microbatch is None else microbatch
            candidates.append((start, rank, run))
        return min(candidates, default=None)

    def _stages_of(self, node: str) -> list[_Stage]:
        """The stages of a node: the whole node, and each set of its devices."""
        tasks, work = self.tasks[node], self.work[node]
        repeated = [i for i, task in enumerate(tasks) if task.repeated]
        groups = [repeated]
        for devices in dict.fromkeys(work[i].devices for i in repeated):
            groups.append([i for i in repeated if work[i].devices == devices])
        # A level is a number of messages that a task waits for. Between the forward and
        # the backward task of a stage, a microbatch passes every later stage twice: it
        # takes one message to each on the way forward, and one from each on the way
        # back. So half of the difference of their levels is the number of later stages.
        # All stages are busy if each of them has a microbatch, and this one, too.
        return [
            _Stage(g[0], g[-1], 1 + (tasks[g[-1]].level - tasks[g[0]].level) // 2)
            for g in groups
            if g[0] != g[-1]
        ]

    def _work_of(self, node: str, task: Task, cache: FlopsCache) -> _Work:
        """What a run of the task needs.

        The ops of a task on different devices of the node run at the same time, so the
        slowest devices count; those that share an op each compute a part of it.
        """
        graph = self.graph
        computed = [
            op for op in task.ops if op.is_computed and not is_conversion(op.kind)
        ]
        costs: dict[str, int] = {}
        used: set[str] = set()
        for op in computed or [*task.ops, *task.totals]:
            place = op.known_place
            ids = graph.cluster.device_ids(place)
            cost = task_cost(graph, op, node, cache) if computed else 0
            devices = graph.devices(op)
            costs[devices] = costs.get(devices, 0) + -(-cost // len(ids))
            used.update(f"{place.device}:{number}" for number in ids)
        # At least 1, so that a task without declared FLOPs takes time, too.
        return _Work(1 + max(costs.values()), tuple(costs), frozenset(used))

    def _link(self) -> None:
        """Set what each run waits for.

        That is the task before it on its node for the same microbatch, its own task for
        the microbatch before, and the tasks that send it messages.
        """
        sources = self._message_sources()
        senders = {edge: {node for node, _ in tasks} for edge, tasks in sources.items()}
        for node, tasks in self.tasks.items():
            for number, task in enumerate(tasks):
                edges = _received_edges(task.ops)
                if number == 0:  # messages received once, before all microbatches
                    edges += _received_edges(self.steps[node].before.ops)
                received = [edge for edge in edges if sources.get(edge)]
                own = {edge for edge in received if node in senders[edge]}
                before = {(node, number - 1)} if number else set()
                # Of a message that the node itself also sends, the run waits for other
                # nodes and for the node's earlier tasks, but not for itself.
                for edge in own:
                    before |= {
                        source
                        for source in sources[edge]
                        if source < (node, number) or source[0] != node
                    }
                for m in self._microbatches_of(task):
                    run = node, number, m
                    waits = [w for each in before for w in self._runs_of(each, m)]
                    waits += (
                        self._message(e, m, sources) for e in received if e not in own
                    )
                    if m:
                        waits.append((node, number, m - 1))
                    self.missing[run] = len(waits)
                    for wait in waits:
                        self.waiting.setdefault(wait, []).append(run)
                    if not waits:
                        self.ready[node][run] = 0

    def _message(
        self,
        edge: int,
        microbatch: int | None,
        sources: Mapping[int, Iterable[tuple[str, int]]],
    ) -> _Run:
        """Return the message that stands for the runs of all its senders.

        n receivers of m senders wait for one message, which takes n + m links instead
        of n * m.
        """
        message = _MESSAGE, edge, microbatch
        if message not in self.missing:
            waits = [
                w for task in sources[edge] for w in self._runs_of(task, microbatch)
            ]
            self.missing[message] = len(waits)
            for wait in waits:
                self.waiting.setdefault(wait, []).append(message)
        return message

    def _message_sources(self) -> dict[int, set[tuple[str, int]]]:
        """The tasks, as (node, number), that come before each edge's message.

        Those are the tasks that send it. A message that a node sends outside of its
        tasks comes after the messages that the node has received by then, and, if it is
        sent after the tasks, after the last of them.
        """
        sources: dict[int, set[tuple[str, int]]] = {}
        behind: dict[int, set[int]] = {}  # edges received before each edge is sent
        for node, step in self.steps.items():
            for number, task in enumerate(step.tasks):
                for op in task.ops:
                    if (edge := op.sent_edge) is not None:
                        sources.setdefault(edge, set()).add((node, number))
            last = {(node, len(step.tasks) - 1)} if step.tasks else set()
            for ops, tasks in ((step.before.ops, set()), (step.after.ops, last)):
                received: set[int] = set()
                for op in ops:
                    if (edge := op.sent_edge) is not None:
                        sources.setdefault(edge, set()).update(tasks)
                        behind.setdefault(edge, set()).update(received)
                    if (edge := op.received_edge) is not None:
                        received.add(edge)
        # Ascending, since an edge has a greater number than the edges before it: their
        # sources are complete when it is their turn to be added.
        for edge in sorted(behind):
            for before in behind[edge]:
                sources[edge] |= sources.get(before, set())
        return sources

    def _runs_of(self, task: tuple[str, int], microbatch: int | None) -> Iterator[_Run]:
        """The runs of a task that a run for this microbatch waits for."""
        node, number = task
        for m in self._microbatches_of(self.tasks[node][number]):
            if microbatch is None or m is None or m == microbatch:
                yield node, number, m

    def _microbatches_of(self, task: Task) -> Sequence[int | None]:
        return range(self.graph.microbatches) if task.repeated else (None,)


def _received_edges(ops: Iterable[Op]) -> list[int]:
    return [edge for op in ops if (edge := op.received_edge) is not None]
