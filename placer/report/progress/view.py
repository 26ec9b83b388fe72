"""The state of a run in progress, and its texts for all displays."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from placer.place.ids import format_nodes
from placer.plan.plan import Plan
from placer.plan.settings.evaluation_and_stopping import Best
from placer.report.numbers import (
    format_count,
    format_duration,
    format_metrics,
    format_rate,
    format_size,
    plural,
)
from placer.report.progress.passes import PassView
from placer.report.progress.sparkline import Series
from placer.report.progress.time_left import TimeLeft
from placer.report.shown_path import shown_path
from placer.runtime.control.checkpoint_settings import best_evaluation
from placer.runtime.control.events import (
    BEFORE_FIRST_STEP,
    CONNECTING,
    IMPORTING,
    PREPARED,
    RUNNING,
    CheckpointSaved,
    Event,
    FewerNodes,
    Left,
    PassBegun,
    Predicted,
    PublicationWritten,
    Recovered,
    Start,
    State,
    Step,
)
from placer.runtime.control.table_counts import TableCounts, add_counts

STARTING = "starting"
"""The state of a node that has not reported yet."""
RECOVERING = "recovering"
"""The state of a node that waits for other nodes after a failure, or has not reported since."""
STALLED = 5.0
"""Seconds without a new step after which the nodes that a node waits for now are shown,
instead of the nodes that it has waited for most."""

MOST_CLASSES = 8
"""The largest number of classes of equal nodes with a line each after a run."""


@dataclass(slots=True)
class RunView:
    """The last reported state of each node, and the steps and evaluations so far.

    Attributes:
        title: The name of the model.
        nodes: The names of the nodes.
        clock: Returns the time in seconds.
        noun: The unit of progress: `step`, or `row` in a prediction.
        programs: The program of each node. Nodes with one program share a line at the end.
        loss: The name of the minimized metric.
        better: How to find the best evaluation; None if evaluations are not compared.
        folder: Returns the folder of the run; None if the run has none.
        begin: The start time of the run.
        states: The last reported state of each node.
        start: The steps of the run, once they are known.
        last_step: The last step.
        evaluations: The steps with an evaluation, in order.
        best: The step with the best evaluation.
        losses: The losses of all steps.
        checkpoint: The last checkpoint.
        publication: The last publication.
        predicted: The number of predicted rows.
        is_recovering: Whether nodes have left an attempt, and do not train yet.
        recovered: The last recovery, until all repeated steps are done.
        passes: The passes of a stream.
    """

    title: str
    nodes: Sequence[str]
    clock: Callable[[], float] = time.monotonic
    noun: str = "step"
    programs: Mapping[str, str] = field(default_factory=dict)
    loss: str = ""
    better: Best | None = None
    folder: Callable[[], Path | None] = lambda: None
    begin: float = field(init=False)
    states: dict[str, State] = field(default_factory=dict)
    start: Start | None = None
    last_step: Step | None = None
    evaluations: list[Step] = field(default_factory=list)
    best: Step | None = None
    losses: Series = field(default_factory=Series)
    checkpoint: CheckpointSaved | None = None
    publication: PublicationWritten | None = None
    predicted: Predicted | None = None
    is_recovering: bool = False
    recovered: Recovered | None = None
    passes: PassView = field(default_factory=PassView)
    _attempt: int = 0
    _moved: dict[str, float] = field(default_factory=dict)
    _first_rows: tuple[float, int] = (0.0, 0)
    _rows_at: float = 0.0
    _time_left: TimeLeft | None = None

    def __post_init__(self) -> None:
        self.begin = self.clock()

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        *,
        noun: str = "step",
        folder: Callable[[], Path | None] = lambda: None,
    ) -> RunView:
        """Return the view of a new run of a plan."""
        return cls(
            plan.name,
            [node.name for node in plan.nodes],
            noun=noun,
            programs={node.name: node.program for node in plan.nodes},
            loss=plan.settings.train.minimize,
            better=best_evaluation(plan),
            folder=folder,
        )

    def update(self, event: Event) -> None:
        if isinstance(event, State):
            before = self.states.get(event.node)
            if before is None or before.step != event.step:
                self._moved[event.node] = self.clock()
            self.states[event.node] = event
            # A process that imports after a step was started again.
            if event.state == IMPORTING and self.last_step is not None:
                self.is_recovering = True
        elif isinstance(event, Left):
            self._leave(event.attempt)
        elif isinstance(event, FewerNodes):
            self.nodes, self.programs = [*event.programs], event.programs
            self.states, self.is_recovering = {}, True
        elif isinstance(event, Recovered):
            self.is_recovering, self.recovered = False, event
            if self.start is not None:
                self._time_left = TimeLeft(self.start)
            if event.replaces:
                self._forget_after(event.step)
        elif isinstance(event, Start):
            self.start, self._time_left = event, TimeLeft(event)
        elif isinstance(event, PassBegun) and self._time_left is not None:
            self._time_left.wait(event.waited)
        elif isinstance(event, CheckpointSaved):
            self.checkpoint = event
        elif isinstance(event, PublicationWritten):
            self.publication = event
        elif isinstance(event, Predicted):
            self._rows_at = self.clock()
            if self.predicted is None:
                self._first_rows = self._rows_at, event.rows
            self.predicted = event
        elif isinstance(event, Step):
            self._end_repetition(event.step)
            self.last_step = event
            if self.loss in event.metrics:
                self.losses.add(event.metrics[self.loss])
            if event.eval is not None:
                self.evaluations.append(event)
                self._compare(event, event.eval)
            if self._time_left is not None:
                self._time_left.add(event, self.clock())
        self.passes.update(event, self.states, self.clock())

    def _end_repetition(self, step: int) -> None:
        """Forget the last recovery, once its repeated steps are done."""
        recovered = self.recovered
        if recovered is not None and step > recovered.step + recovered.again:
            self.recovered = None

    def _leave(self, attempt: int) -> None:
        """Note that a node leaves an attempt. The earlier states of all nodes are void."""
        if attempt <= self._attempt:
            return
        self._attempt, self.is_recovering = attempt, True
        self.states = {node: State(node, RECOVERING) for node in self.states}

    def _forget_after(self, step: int) -> None:
        """Forget the evaluations after a step, because other steps will replace them."""
        kept = [each for each in self.evaluations if each.step <= step]
        self.evaluations, self.best = kept, None
        for each in kept:
            self._compare(each, each.eval or {})

    def _compare(self, step: Step, metrics: Mapping[str, float]) -> None:
        if self.better is None or self.better.metric not in metrics:
            return
        best = None if self.best is None else (self.best.eval or {})[self.better.metric]
        if self.better.improves(metrics[self.better.metric], best):
            self.best = step

    @property
    def is_stream(self) -> bool:
        """Whether the training rows are a stream, whose epochs are passes."""
        return self.start is not None and not self.start.steps_per_epoch

    @property
    def step(self) -> int:
        """The last step; that of the checkpoint before the first step of a resumed run."""
        if self.last_step is not None:
            return self.last_step.step
        return 0 if self.start is None else self.start.first_step - 1

    @property
    def share(self) -> float:
        """The finished part of the steps or rows, from 0 to 1. Of a stream without a last
        step, the finished part of the pass."""
        if self.predicted is not None:
            return self.predicted.rows / max(1, self.predicted.total)
        if self.start is None:
            return 0.0
        if not self.start.last_step:
            return self.passes.share(self.step)
        return min(1.0, self.step / self.start.last_step)

    def share_text(self) -> str:
        """Return the finished part as text; "" for a stream before its first pass."""
        if self.start is None or self.start.last_step:
            return f"{self.share:4.0%}  "
        if self.passes.current is None:
            return ""
        return f"{self.share:4.0%} of the pass  "

    def position(self) -> str:
        """Return the position as text: last step and epoch or pass, or rows."""
        if (rows := self.predicted) is not None:
            return f"{format_count(rows.rows)} of {format_count(rows.total)} rows"
        start, step = self.start, self.last_step
        if step is None and start is None:
            return f"no {self.noun} yet"
        text = f"step {format_count(self.step)}"
        if start is not None and start.last_step:
            text += f" of {format_count(start.last_step)}"
        if self.is_stream:
            return "  ".join(filter(None, (text, self.passes.position(self.step))))
        if step is not None:
            text += f"  epoch {format_count(step.epoch)}"
            if start is not None:
                text += f" of {format_count(start.last_epoch)}"
        return text

    def waiting(self) -> str:
        """Return the file of a stream that the run waits for, as one line; "" for none."""
        return self.passes.waiting(self.clock())

    def state_of(self, node: str) -> str:
        """Return the state of a node in words."""
        if node not in self.states:
            return STARTING
        state = self.states[node].state
        waits = self.is_recovering and state in (CONNECTING, PREPARED)
        return RECOVERING if waits else state

    def recovery(self) -> str:
        """Return the nodes that a recovery waits for, or the steps that are done again, as
        one line; "" otherwise."""
        if self.is_recovering:
            last = min(map(self._progress, self.nodes))
            nodes = [node for node in self.nodes if self._progress(node) == last]
            state = self.state_of(nodes[0])
            is_known = state not in (STARTING, RECOVERING)
            if len(nodes) == len(self.nodes):
                return f"{RECOVERING}: {state}" if is_known else RECOVERING
            does = f" ({state})" if is_known else ""
            return f"{RECOVERING}: waits for {format_nodes(nodes)}{does}"
        if self.recovered is None or not self.recovered.again:
            return ""
        begin, again = self.recovered.step, self.recovered.again
        steps = f"{format_count(begin + 1)} to {format_count(begin + again)}"
        return f"steps {steps} are done again"

    def _progress(self, node: str) -> int:
        """Return the progress of a node since a failure; -1 before its process imports."""
        state = self.states[node].state if node in self.states else STARTING
        if state in (STARTING, RECOVERING):
            return -1
        order = BEFORE_FIRST_STEP
        return order.index(state) if state in order else len(order)

    def metrics(self, levels: str = "") -> Iterator[str]:
        """Yield each metric of the last step as text; draw the loss of all steps with
        `levels`, if any."""
        if (step := self.last_step) is None:
            return
        for name, value in step.metrics.items():
            text = format_metrics({name: value})
            line = self.losses.line(levels) if levels and name == self.loss else ""
            yield f"{text} {line}" if line else text

    def learning_rates(self) -> str:
        """Return the learning rates of the last step as text; "" before it."""
        if self.last_step is None or not (rates := self.last_step.learning_rates):
            return ""
        if len(rates) == 1:
            return f"learning rate {next(iter(rates.values())):.4g}"
        listed = ", ".join(f"{name} {rate:.4g}" for name, rate in rates.items())
        return f"learning rates: {listed}"

    def staleness(self) -> str:
        """Return the mean and the largest staleness of all gradients as text; "" for
        synchronous training."""
        states = self.states.values()
        return _staleness("staleness", [each.staleness for each in states])

    def geo_staleness(self) -> str:
        """Return the same for the differences of workers (`geo`)."""
        states = self.states.values()
        return _staleness("GEO staleness", [each.geo_staleness for each in states])

    def folder_text(self) -> str:
        """Return the folder of the run as text; "" if the run has none."""
        folder = self.folder()
        return "" if folder is None else str(shown_path(folder))

    def best_text(self) -> str:
        """Return the best evaluation as one line; "" if there is only one or none."""
        if self.best is None or len(self.evaluations) < 2:
            return ""
        after = format_count(self.best.step)
        metrics = format_metrics(self.best.eval or {})
        return f"best evaluation, after step {after}: {metrics}"

    def tables(self) -> dict[str, TableCounts]:
        """Return the counts of each sparse table, summed over all nodes."""
        return add_counts(state.tables for state in self.states.values())

    def counts_since(self) -> str:
        """Return the step after which a resumed run counts in sparse tables, as a line; ""
        if it counts from its start."""
        return since_text(self.tables().values())

    def times(self) -> Iterator[str]:
        """Yield the time since the start, and the time left, each as text."""
        now = self.clock()
        yield f"{format_duration(now - self.begin)} elapsed"
        left = None if self._time_left is None else self._time_left.left(now)
        if (rows := self.predicted) is not None and (rate := self._row_rate):
            left = (rows.total - rows.rows) / rate
        if left is not None and self.share < 1:
            yield f"{format_duration(left)} left"

    def rates(self) -> Iterator[str]:
        """Yield the steps and rows per second, each as text."""
        if self._time_left is not None and (seconds := self._time_left.step_seconds):
            yield format_rate(1 / seconds, "step")
        if self.last_step is not None and (rate := self.last_step.samples_per_second):
            yield f"{format_count(rate)} samples/s"
        if rate := self._row_rate:
            yield f"{format_count(rate)} rows/s"

    @property
    def _row_rate(self) -> float:
        """The predicted rows per second; 0 if unknown."""
        if self.predicted is None:
            return 0.0
        since, first = self._first_rows
        seconds = self._rows_at - since
        return (self.predicted.rows - first) / seconds if seconds else 0.0

    def waits_for(self, node: str) -> Sequence[str]:
        """Return the nodes that a node waits for now, if it is not training or has not
        moved for a while; otherwise the nodes that it has waited for most."""
        state = self.states[node]
        return state.waiting if self.shows_now(node) else state.waits.mostly_for

    def shows_now(self, node: str) -> bool:
        """Return True if `waits_for` returns the nodes that a node waits for now."""
        state = self.states[node]
        is_training = state.state == RUNNING and state.waits.samples
        return not is_training or self.clock() - self._moved[node] >= STALLED


def _staleness(name: str, parts: Iterable[Mapping[str, int]]) -> str:
    counts: Counter[int] = Counter()
    for part in parts:
        counts.update({int(value): n for value, n in part.items()})
    if not counts:
        return ""
    mean = sum(value * n for value, n in counts.items()) / counts.total()
    return f"{name}: mean {mean:.2f}, maximum {max(counts)}"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """What one node does, or several nodes of a kind in the same state.

    Attributes:
        steps: The lowest and highest step of these nodes; None before the first report.
        waits_for: The other nodes that they wait for, as text.
        shares: The lowest, mean and highest share of waiting; None before the first step.
    """

    nodes: str
    state: str
    steps: tuple[int, int] | None
    bytes_sent: int
    waits_for: str
    shares: tuple[float, float, float] | None = None

    @property
    def step(self) -> str:
        """The steps as text; empty before the first report."""
        if self.steps is None or not self.steps[1]:
            return ""
        return "-".join(map(format_count, dict.fromkeys(self.steps)))

    @property
    def share(self) -> str:
        """The share of waiting as text, such as `55%` or `40-60%`; "" if unknown."""
        if self.shares is None:
            return ""
        least, _, most = (f"{share:.0%}" for share in self.shares)
        return most if least == most else f"{least[:-1]}-{most}"


def node_rows(run: RunView, most: int) -> list[NodeRow]:
    """Return a row for each node. Beyond `most`, group the nodes and cut the list."""
    if len(run.nodes) <= most:
        return [_node_row(run, [node]) for node in run.nodes]
    return group_rows(run)[:most]


def group_rows(run: RunView) -> list[NodeRow]:
    """Return a row for each group of nodes with the same kind and state. Nodes that others
    of their group wait for have a row of their own."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node in run.nodes:
        kind = node.partition(":")[0]
        groups.setdefault((kind, run.state_of(node)), []).append(node)
    rows = []
    for nodes in groups.values():
        peers = {peer for node in nodes for peer in _waits_for(run, node)}
        others = [node for node in nodes if node not in peers]
        expected = [node for node in nodes if node in peers]
        rows += [_node_row(run, each) for each in (others, expected) if each]
    return rows


def class_rows(run: RunView) -> list[NodeRow]:
    """Return a row for each class of nodes that run the same program; beyond
    `MOST_CLASSES`, a row for each kind of nodes."""
    classes: dict[str, list[str]] = {}
    kinds: dict[str, list[str]] = {}
    for node in run.nodes:
        kind = node.partition(":")[0]
        kinds.setdefault(kind, []).append(node)
        classes.setdefault(run.programs.get(node, kind), []).append(node)
    groups = classes if len(classes) <= MOST_CLASSES else kinds
    return [_node_row(run, nodes, is_over=True) for nodes in groups.values()]


def _waits_for(run: RunView, node: str) -> Sequence[str]:
    return run.waits_for(node) if node in run.states else ()


def _node_row(run: RunView, nodes: Sequence[str], *, is_over: bool = False) -> NodeRow:
    known = [node for node in nodes if node in run.states]
    states = [run.states[node] for node in known]
    if not states:
        return NodeRow(format_nodes(nodes), STARTING, None, 0, "")
    text = run.state_of(known[0])
    if rows := max(state.rows for state in states):
        text += f": {format_count(rows)}"
    steps = [state.step for state in states]
    shares = [share for state in states if (share := state.waits.share) is not None]
    peers = dict.fromkeys(
        peer
        for state in states
        for peer in (state.waits.mostly_for if is_over else run.waits_for(state.node))
    )
    others = [peer for peer in peers if peer not in nodes]
    text_of_peers = format_nodes(others) if others or not peers else "each other"
    if peers and shares and not is_over and any(map(run.shows_now, known)):
        text_of_peers += " now"
    return NodeRow(
        format_nodes(nodes),
        text,
        (min(steps), max(steps)),
        sum(state.bytes_sent for state in states),
        text_of_peers,
        (min(shares), sum(shares) / len(shares), max(shares)) if shares else None,
    )


def wait_text(row: NodeRow) -> str:
    """Return the share of waiting of a row as one line."""
    peers = f", mostly for {row.waits_for}" if row.waits_for else ""
    return f"{row.nodes} waited {row.share} of the time{peers}"


MOST_HOLDERS = 4
"""The largest number of nodes whose rows of a table are listed."""


def table_rows(run: RunView, most: int) -> list[tuple[str, TableCounts]]:
    """Return the counts of each sparse table. Beyond `most`, the rest is summed."""
    rows = list(run.tables().items())
    if len(rows) <= most:
        return rows
    shown, others = rows[: most - 1], dict(rows[most - 1 :])
    total = sum(others.values(), start=TableCounts())
    return [*shown, (f"{len(others)} others", total)]


def table_columns(
    rows: Sequence[tuple[str, TableCounts]],
) -> dict[str, Sequence[str]]:
    """Return the columns for sparse tables by their heads. Evicted keys count as
    forgotten. The number of counted keys is left out if it is 0 for all tables."""
    counts = [each for _, each in rows]
    rates = [each.hit_rate for each in counts]
    columns: dict[str, Sequence[str]] = {
        "table": [name for name, _ in rows],
        "rows": [format_count(each.rows) for each in counts],
        "counted": [format_count(each.counted) for each in counts],
        "admitted": [format_count(each.admitted) for each in counts],
        "refused": [format_count(each.refused) for each in counts],
        "forgotten": [format_count(each.forgotten + each.evicted) for each in counts],
        "hit rate": ["" if rate is None else f"{rate:.1%}" for rate in rates],
        "memory": [format_size(each.nbytes) for each in counts],
    }
    if not any(each.counted for each in counts):
        del columns["counted"]
    return columns


def table_text(name: str, counts: TableCounts) -> str:
    """Return the counts of a table as one line, without numbers of counted, refused and
    forgotten keys that are 0."""
    forgotten, rate = counts.forgotten + counts.evicted, counts.hit_rate
    text = f"table {name}  {format_count(counts.rows)} rows"
    text += f"  {format_count(counts.counted)} counted" if counts.counted else ""
    text += f"  since step {format_count(counts.since)}:" if counts.since else " "
    text += f" {format_count(counts.admitted)} admitted"
    text += f"  {format_count(counts.refused)} refused" if counts.refused else ""
    text += f"  {format_count(forgotten)} forgotten" if forgotten else ""
    text += "" if rate is None else f"  hit rate {rate:.1%}"
    if counts.not_finite:
        text += f"  {plural(counts.not_finite, 'gradient')} not finite"
    return f"{text}  {format_size(counts.nbytes)}"


def since_text(counts: Iterable[TableCounts]) -> str:
    """Return the step after which a resumed run counts, as a line; "" if it counts from its
    start.

    >>> since_text([TableCounts(since=400)])
    'since step 400: admitted, refused, forgotten, hit rate'
    """
    since = max((each.since for each in counts), default=0)
    names = "admitted, refused, forgotten, hit rate"
    return f"since step {format_count(since)}: {names}" if since else ""


def holders_text(
    rows: Mapping[str, int], counted: Mapping[str, int], nbytes: Mapping[str, int]
) -> str:
    """Return the rows, counted keys and memory of a table on each node as text; "" for one
    node. Counted keys are left out if no node has any.

    >>> holders_text({"ps:0": 1200, "ps:1": 1250}, {}, {"ps:0": 80_000, "ps:1": 82_000})
    'ps:0 1,200 rows, 80.0 kB; ps:1 1,250 rows, 82.0 kB'
    """
    if len(rows) < 2:
        return ""
    seen = counted if any(counted.values()) else {}
    numbers: list[tuple[Mapping[str, int], Callable[[int], str], str]]
    numbers = [
        (rows, format_count, " rows"),
        (seen, format_count, " counted"),
        (nbytes, format_size, ""),
    ]
    shown = [each for each in numbers if each[0]]
    if len(rows) > MOST_HOLDERS:
        listed = ", ".join(
            f"{text(min(of.values()))} to {text(max(of.values()))}{unit}"
            for of, text, unit in shown
        )
        return f"{listed} on each of {len(rows)} nodes"
    return "; ".join(
        f"{node} {', '.join(text(of[node]) + unit for of, text, unit in shown)}"
        for node in rows
    )


def checkpoint_text(checkpoint: CheckpointSaved) -> str:
    """Return a checkpoint as one line."""
    best = ", the best so far" if checkpoint.best else ""
    return (
        f"checkpoint of step {format_count(checkpoint.step)}{best}: {checkpoint.path}"
    )


def publication_text(written: PublicationWritten) -> str:
    """Return a publication as one line."""
    rows = f"{format_count(written.rows)} rows"
    if written.removed:
        rows += f", {format_count(written.removed)} removed"
    kind = "base" if written.is_base else "delta"
    step = format_count(written.step)
    return f"{kind} {written.number} of step {step}: {rows}: {written.path}"


def fill_lines(fields: Iterable[str], width: int) -> Iterator[str]:
    """Yield lines of at most `width` characters, with as many fields on each as fit."""
    line = ""
    for part in filter(None, fields):
        if line and len(line) + 2 + len(part) > width:
            yield line
            line = ""
        line += f"  {part}" if line else part
    if line:
        yield line
