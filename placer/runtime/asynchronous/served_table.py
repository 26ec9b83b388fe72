"""An asynchronous table as its server sees it: received and applied messages of each worker."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from placer.channel.interface import Array
from placer.plan.plan import Edge
from placer.plan.settings.training.update_modes import Geo, Mode
from placer.runtime.asynchronous.worker_sums import WorkerSums
from placer.runtime.exchange.worker_messages import WorkerMessage
from placer.tables.key_sums import KeyPart


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a worker."""

    others: int  # steps of other workers applied before the answer
    values: Sequence[Array]  # in the answer, if they are kept


@dataclass(slots=True)
class ServedTable:
    """An asynchronous table as its server sees it.

    Attributes:
        pull, push: the edges of the table.
        ask: the edge of the keys; None for a table that is not sparse.
        keeps: whether to keep the values of an answer while a worker uses them.
        sums: the gradient sums for workers with a worker-side update.
        round: pushes that wait for the pushes of all other workers; None if each push is
            applied on arrival.
        has_start: whether workers start from the initial values, so that their first pushes
            after a drain use no answer.
        version: the number of applied pushes since the last drain.
        received: the number of messages of each worker.
        applied: the newest applied step of each worker.
        drained: the workers that have drained.
        waiting: requests that cannot be answered yet, with the step they wait for.
        answers: the answers in use and newer ones, by worker and version.
        counts: the number of applied steps of each worker since the last drain.
        staleness: histogram: how many pushes had each staleness. Staleness counts the
            steps of other workers applied between a worker's pull and its push.
        asked: the requested keys of each worker whose gradients have not arrived, for
            this step and the next one.
    """

    pull: Edge
    push: Edge
    ask: Edge | None = None
    keeps: bool = False
    sums: WorkerSums | None = None
    round: dict[str, WorkerMessage] | None = None
    has_start: bool = False
    version: int = 0
    received: Counter[str] = field(default_factory=Counter)
    applied: dict[str, int] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    waiting: list[tuple[float, WorkerMessage]] = field(default_factory=list)
    answers: dict[str, dict[int, Answer]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    asked: dict[str, list[Sequence[KeyPart]]] = field(default_factory=dict)

    @property
    def takes_differences(self) -> bool:
        """Whether workers push differences of their own values (`geo`), not gradients."""
        declared = self.push.declared
        return declared is not None and declared.moves == "differences"

    @property
    def answering_edge(self) -> int:
        """The number of the edge for which the hook `serve` answers a request."""
        return self.pull.id if self.ask is None else self.ask.id

    @property
    def horizon(self) -> int:
        """The newest step for which all workers' gradients are applied. Workers that
        have drained do not count."""
        open_steps = [s for w, s in self.applied.items() if w not in self.drained]
        return min(open_steps, default=max(self.applied.values()))

    @property
    def answered(self) -> float:
        """The newest step that a request may wait for to be answered now. It is
        infinite once all workers have drained."""
        if len(self.drained) == len(self.push.sources):
            return math.inf
        return self.horizon

    def begin(self) -> None:
        """Begin after a drain, like a server that has loaded the checkpoint of the drain."""
        self.version = 0
        self.drained.clear()
        self.counts.clear()
        self.asked.clear()
        self.answers.clear()
        if self.has_start:
            self.answers |= {w: {0: Answer(0, ())} for w in self.push.sources}

    def count_others(self, worker: str) -> int:
        """Return how many steps of the other workers were applied."""
        return self.counts.total() - self.counts[worker]


def serve_table(server: str, pull: Edge, push: Edge, mode: Mode) -> ServedTable:
    """Return a server's table for a mode, before the first step."""
    served = ServedTable(pull, push, keeps=mode.compensate is not None)
    if mode.in_rounds:
        served.round = {}
    if pull.declared and pull.declared.moves == "sums":
        served.sums = WorkerSums(push, server)
    served.has_start = served.sums is not None or isinstance(mode, Geo)
    return served
