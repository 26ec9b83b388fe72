"""The state of a run in progress, and its texts for all displays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from placer.place.ids import format_nodes
from placer.report.numbers import (
    format_count,
    format_duration,
    format_metrics,
    format_rate,
    format_size,
    plural,
)
from placer.report.progress.time_left import TimeLeft
from placer.runtime.control.events import (
    CheckpointSaved,
    Event,
    Predicted,
    Start,
    State,
    Step,
)
from placer.runtime.control.table_counts import TableCounts, add_counts

STARTING = "starting"
"""The state of a node that has not reported yet."""


@dataclass(slots=True)
class RunView:
    """The last reported state of each node, and the steps and evaluations so far.

    Attributes:
        title: The name of the model.
        nodes: The names of the nodes.
        clock: Returns the time in seconds.
        noun: The unit of progress: `step`, or `row` in a prediction.
        begin: The start time of the run.
        states: The last reported state of each node.
        start: The steps of the run, once they are known.
        last_step: The last step.
        evaluations: The steps with an evaluation, in order.
        checkpoint: The last checkpoint.
        predicted: The number of predicted rows.
    """

    title: str
    nodes: Sequence[str]
    clock: Callable[[], float] = time.monotonic
    noun: str = "step"
    begin: float = field(init=False)
    states: dict[str, State] = field(default_factory=dict)
    start: Start | None = None
    last_step: Step | None = None
    evaluations: list[Step] = field(default_factory=list)
    checkpoint: CheckpointSaved | None = None
    predicted: Predicted | None = None
    _first_rows: tuple[float, int] = (0.0, 0)
    _rows_at: float = 0.0
    _time_left: TimeLeft | None = None

    def __post_init__(self) -> None:
        self.begin = self.clock()

    def update(self, event: Event) -> None:
        if isinstance(event, State):
            self.states[event.node] = event
        elif isinstance(event, Start):
            self.start, self._time_left = event, TimeLeft(event)
        elif isinstance(event, CheckpointSaved):
            self.checkpoint = event
        elif isinstance(event, Predicted):
            self._rows_at = self.clock()
            if self.predicted is None:
                self._first_rows = self._rows_at, event.rows
            self.predicted = event
        elif isinstance(event, Step):
            self.last_step = event
            if event.eval is not None:
                self.evaluations.append(event)
            if self._time_left is not None:
                self._time_left.add(event, self.clock())

    @property
    def share(self) -> float:
        """The finished part of the steps or rows, from 0 to 1."""
        if self.predicted is not None:
            return self.predicted.rows / max(1, self.predicted.total)
        if self.start is None or self.last_step is None:
            return 0.0
        return min(1.0, self.last_step.step / self.start.last_step)

    def position(self) -> str:
        """Return the position as text: last step and epoch, or rows."""
        if (rows := self.predicted) is not None:
            return f"{format_count(rows.rows)} of {format_count(rows.total)} rows"
        start, step = self.start, self.last_step
        if step is None and start is None:
            return f"no {self.noun} yet"
        number = 0 if step is None else step.step
        text = f"step {format_count(number)}"
        if start is not None:
            text += f" of {format_count(start.last_step)}"
        if step is not None:
            text += f"  epoch {format_count(step.epoch)}"
            if start is not None:
                epochs = -(-start.last_step // start.steps_per_epoch)
                text += f" of {format_count(epochs)}"
        return text

    def metrics(self) -> Iterator[str]:
        """Yield each metric and learning rate of the last step as text."""
        if (step := self.last_step) is None:
            return
        for name, value in step.metrics.items():
            yield format_metrics({name: value})
        several = len(step.learning_rates) > 1
        for name, rate in step.learning_rates.items():
            yield f"learning rate{f' of {name}' if several else ''} {rate:.4g}"

    def tables(self) -> dict[str, TableCounts]:
        """Return the counts of each sparse table, summed over all nodes."""
        return add_counts(state.tables for state in self.states.values())

    def times(self) -> Iterator[str]:
        """Yield the time since the start, the time left and the rates, each as text."""
        now = self.clock()
        yield f"{format_duration(now - self.begin)} elapsed"
        if self._time_left is not None:
            left = self._time_left.left(now)
            if left is not None and self.share < 1:
                yield f"{format_duration(left)} left"
            if seconds := self._time_left.step_seconds:
                yield format_rate(1 / seconds, "step")
        if self.last_step is not None and (rate := self.last_step.samples_per_second):
            yield f"{format_count(rate)} samples/s"
        if (rows := self.predicted) is not None:
            since, first = self._first_rows
            seconds = self._rows_at - since
            rate = (rows.rows - first) / seconds if seconds else 0.0
            if rate and rows.rows < rows.total:
                yield f"{format_duration((rows.total - rows.rows) / rate)} left"
            if rate:
                yield f"{format_count(rate)} rows/s"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """What one node does, or several nodes of a kind in the same state.

    Attributes:
        steps: The lowest and highest step of these nodes; None before the first report.
        waiting: The nodes that they wait for.
    """

    nodes: str
    state: str
    steps: tuple[int, int] | None
    bytes_sent: int
    waiting: str

    @property
    def step(self) -> str:
        """The steps as text; empty before the first report."""
        if self.steps is None or not self.steps[1]:
            return ""
        return "-".join(map(format_count, dict.fromkeys(self.steps)))


def node_rows(run: RunView, most: int) -> list[NodeRow]:
    """Return a row for each node. Beyond `most`, group the nodes and cut the list."""
    if len(run.nodes) <= most:
        return [_node_row(run, [node]) for node in run.nodes]
    return group_rows(run)[:most]


def group_rows(run: RunView) -> list[NodeRow]:
    """Return a row for each group of nodes with the same kind and state."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node in run.nodes:
        state = run.states.get(node)
        kind = node.partition(":")[0]
        groups.setdefault((kind, state.state if state else STARTING), []).append(node)
    return [_node_row(run, nodes) for nodes in groups.values()]


def _node_row(run: RunView, nodes: Sequence[str]) -> NodeRow:
    states = [run.states[node] for node in nodes if node in run.states]
    if not states:
        return NodeRow(format_nodes(nodes), STARTING, None, 0, "")
    text = states[0].state
    if rows := max(state.rows for state in states):
        text += f": {format_count(rows)}"
    steps = [state.step for state in states]
    waiting = dict.fromkeys(other for state in states for other in state.waiting)
    return NodeRow(
        format_nodes(nodes),
        text,
        (min(steps), max(steps)),
        sum(state.bytes_sent for state in states),
        format_nodes(waiting),
    )


TABLE_NUMBERS = ("rows", "admitted", "refused", "forgotten", "hit rate", "memory")
"""The columns shown for a sparse table."""


def table_rows(run: RunView, most: int) -> list[tuple[str, TableCounts]]:
    """Return the counts of each sparse table. Beyond `most`, the rest is summed."""
    rows = list(run.tables().items())
    if len(rows) <= most:
        return rows
    shown, others = rows[: most - 1], dict(rows[most - 1 :])
    total = sum(others.values(), start=TableCounts())
    return [*shown, (f"{len(others)} others", total)]


def table_numbers(counts: TableCounts) -> tuple[str, ...]:
    """Return the `TABLE_NUMBERS` of a table. Evicted keys count as forgotten."""
    rate = counts.hit_rate
    return (
        format_count(counts.rows),
        format_count(counts.admitted),
        format_count(counts.refused),
        format_count(counts.forgotten + counts.evicted),
        "" if rate is None else f"{rate:.1%}",
        format_size(counts.nbytes),
    )


def table_text(name: str, counts: TableCounts) -> str:
    """Return the counts of a table as one line."""
    rows, admitted, refused, forgotten, rate, memory = table_numbers(counts)
    text = f"table {name}  {rows} rows  {admitted} admitted  {refused} refused"
    text += f"  {forgotten} forgotten" + (f"  hit rate {rate}" if rate else "")
    if counts.not_finite:
        text += f"  {plural(counts.not_finite, 'gradient')} not finite"
    return f"{text}  {memory}"


def checkpoint_text(checkpoint: CheckpointSaved) -> str:
    """Return a checkpoint as one line."""
    best = ", the best so far" if checkpoint.best else ""
    return (
        f"checkpoint of step {format_count(checkpoint.step)}{best}: {checkpoint.path}"
    )
