"""Orders the tasks of each node for the microbatches of a step.

The schedule comes from a simulation of one step. A task takes as long as its declared
FLOPs. The devices of a node work in parallel, each on one task at a time. Among the ready
tasks, `gpipe` runs the first one of the step, so that all forward tasks precede the
backward tasks (Huang et al. 2019). `1f1b` runs the last one, which continues the most
advanced microbatch. It starts only as many microbatches as needed to keep all devices busy
(PipeDream: Narayanan et al. 2019, 2021).
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
    """One run of a task.

    Attributes:
        task: the name of the task.
        microbatch: the number of the microbatch; None for a task that runs once a step.
        start: the simulated start time in declared FLOPs; not parsed from text.
        end: the simulated end time in declared FLOPs; not parsed from text.
        devices: the devices that the run uses; not parsed from text.
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
    """The scheduled tasks of each node, in order of their start."""

    policy: str
    microbatches: int
    tasks: Mapping[str, tuple[ScheduledTask, ...]]

    def task_names(self, node: str) -> tuple[str, ...]:
        """Return a node's tasks as text: `forward.0`, or `totals` for a single run."""
        return tuple(map(str, self.tasks.get(node, ())))


def make_schedule(graph: Graph, policy: str) -> Schedule:
    """Return the schedule of a step.

    A step without microbatches has an empty schedule.

    Args:
        graph: the graph of the step after the last pass.
        policy: `1f1b` or `gpipe`.

    Raises:
        GraphError: tasks of different nodes wait for each other.
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
"""A run of a task: node, task number and microbatch. For a message: _MESSAGE, edge and
microbatch."""
_MESSAGE = ""


@dataclass(frozen=True, slots=True)
class _Work:
    """The resources of one run of a task.

    Attributes:
        cost: the duration in FLOPs.
        groups: the sets of devices that compute together, such as `gpu:0-1`.
        devices: all devices that the run occupies.
    """

    cost: int
    groups: tuple[str, ...]
    devices: frozenset[str]


@dataclass(slots=True)
class _Stage:
    """A pipeline stage (a node or some of its devices) with its limit of microbatches.

    Attributes:
        first: the number of the first repeated task.
        last: the number of the last repeated task.
        limit: how many microbatches in flight keep all stages busy.
        in_flight: the microbatches that have run `first` but not `last`.
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
    """The tasks to schedule, by node."""
    stages: dict[str, Sequence[_Stage]] = field(default_factory=dict)
    """The stages of each node, which limit microbatches in flight."""
    runs: dict[str, list[ScheduledTask]] = field(default_factory=dict)
    """The result: the runs of each node in the order of their start."""
    work: dict[str, Sequence[_Work]] = field(default_factory=dict)
    free: dict[tuple[str, str], int] = field(default_factory=dict)
    """When each device of each node finishes its latest run."""
    ready: dict[str, dict[_Run, int]] = field(default_factory=dict)
    """The runs of each node that are ready, and since when."""
    missing: dict[_Run, int] = field(default_factory=dict)
    """The number of unfinished runs that each run waits for."""
    waiting: dict[_Run, list[_Run]] = field(default_factory=dict)
    """The runs that wait for each run."""
    since: dict[_Run, int] = field(default_factory=dict)
    """When the latest prerequisite of each run ended."""

    def run(self) -> None:
        """Simulate the step. Raises GraphError on a deadlock."""
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
        # The heap keeps outdated entries; only entries equal to `best` are valid.
        heap = [candidate for candidate in best.values() if candidate is not None]
        heapify(heap)
        while True:
            while heap and best[heap[0][2][0]] != heap[0]:
                heappop(heap)
            if heap:
                chosen = heappop(heap)
            else:
                # Either all nodes are at their limits, or nothing is ready. In the
                # first case, one run ignores the limits, or the step would hang.
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
        """Return the error for runs that wait for each other."""
        task = self.tasks[node][number]
        op = next((op for op in task.ops if op.source is not None), None)
        return GraphError(
            f"{node} cannot run '{ScheduledTask(task.name, microbatch)}': it and other"
            " nodes wait for each other",
            span=op.source if op is not None else None,
            hint="place the ops so that microbatches visit each node once, or leave"
            " train.microbatches out",
        )

    def _start(self, run: _Run, start: int) -> set[str]:
        """Start a run; return the nodes whose best next run may change."""
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
                    finished.append(user)  # at `end`, with its last sender
                else:
                    self.ready[user[0]][user] = self.since[user]
                    changed.add(user[0])
        return changed

    def _best_run(self, node: str, *, limit: bool) -> tuple[int, _Rank, _Run] | None:
        """Return a node's next run with its start and rank: the earliest, then by policy."""
        # With `limit`, no microbatch starts in a stage with enough microbatches in flight.
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
        """Return the stages of a node: the whole node, and each set of devices."""
        tasks, work = self.tasks[node], self.work[node]
        repeated = [i for i, task in enumerate(tasks) if task.repeated]
        groups = [repeated]
        for devices in dict.fromkeys(work[i].devices for i in repeated):
            groups.append([i for i in repeated if work[i].devices == devices])
        # A level counts the messages that a task waits for. Between a stage's forward
        # and backward task, a microbatch visits every later stage twice, with one
        # message forward and one back per stage. So half of the level difference is the
        # number of later stages. One microbatch for each of them, and one for this
        # stage, keep all stages busy.
        return [
            _Stage(g[0], g[-1], 1 + (tasks[g[-1]].level - tasks[g[0]].level) // 2)
            for g in groups
            if g[0] != g[-1]
        ]

    def _work_of(self, node: str, task: Task, cache: FlopsCache) -> _Work:
        """Return the resources of a run of a task."""
        # Ops on different devices of the node run in parallel, so the slowest device
        # counts. Devices that share an op each compute a part of it.
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
        # At least 1, so that tasks without declared FLOPs also take time.
        return _Work(1 + max(costs.values()), tuple(costs), frozenset(used))

    def _link(self) -> None:
        """Set the prerequisites of each run."""
        # A run waits for the previous task of the node for the same microbatch, for the
        # same task of the previous microbatch, and for the tasks that send it messages.
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
                # If the node itself also sends a message, its run waits for the other
                # senders and for the node's earlier tasks.
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
        """Return the message that represents the runs of all its senders."""
        # With a message as node, n receivers and m senders need n + m links, not n * m.
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
        """Return the tasks, as (node, number), that precede each edge's message."""
        # A message follows the tasks that send it. A message sent outside of tasks follows
        # the messages that the node has received before. If it is sent after the tasks, it
        # also follows the last task.
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
        # An edge has a greater number than the edges before it. In ascending order, the
        # sources of those edges are complete when they are added.
        for edge in sorted(behind):
            for before in behind[edge]:
                sources[edge] |= sources.get(before, set())
        return sources

    def _runs_of(self, task: tuple[str, int], microbatch: int | None) -> Iterator[_Run]:
        """Yield the runs of a task that a run for this microbatch waits for."""
        node, number = task
        for m in self._microbatches_of(self.tasks[node][number]):
            if microbatch is None or m is None or m == microbatch:
                yield node, number, m

    def _microbatches_of(self, task: Task) -> Sequence[int | None]:
        return range(self.graph.microbatches) if task.repeated else (None,)


def _received_edges(ops: Iterable[Op]) -> list[int]:
    return [edge for op in ops if (edge := op.received_edge) is not None]
