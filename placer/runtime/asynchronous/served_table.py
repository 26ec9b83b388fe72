"""A table without lockstep as its server sees it: what of each worker has come, and what is
applied."""

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
    """What a worker got: how many steps of other workers were applied before, and the
    values, if they are kept."""

    others: int
    values: Sequence[Array]


@dataclass(slots=True)
class ServedTable:
    """A table as its server sees it.

    Attributes:
        pull, push: the edges of the table.
        version: how many pushes were applied.
        received: the number of messages of each worker.
        applied: the newest step of each worker that is applied.
        drained: the workers that send nothing more before the next drain has ended.
        waiting: requests that cannot be answered yet, with the steps that they wait for.
        sums: what the server answers with, if workers update by themselves.
        keeps: whether the values of answers are kept until they are not used any more.
        round: the pushes that wait for those of all other workers; None if each is applied
            by itself.
        answers: the answers to each worker, by version, from the one that it uses on.
        counts: how many steps of each worker were applied.
        staleness: how many pushes had each staleness: so many steps of other workers
            were applied between the answer that a push was computed from and the push.
        ask: the edge of the keys of sparse tables, if it is of those.
        asked: the keys that each worker has asked for, and not pushed gradients of: those
            of this step, and of the next one.
    """

    pull: Edge
    push: Edge
    ask: Edge | None = None
    keeps: bool = False
    sums: WorkerSums | None = None
    round: dict[str, WorkerMessage] | None = None
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
    def answering_edge(self) -> int:
        """The number of the edge whose case answers a request."""
        return self.pull.id if self.ask is None else self.ask.id

    @property
    def horizon(self) -> int:
        """The newest step up to which all steps of all workers are applied. A worker
        that has drained counts as infinitely far ahead."""
        open_steps = [s for w, s in self.applied.items() if w not in self.drained]
        return min(open_steps, default=max(self.applied.values()))

    @property
    def answered(self) -> float:
        """Requests that wait for steps up to this one can be answered: all of them, when
        all workers have drained."""
        if len(self.drained) == len(self.push.sources):
            return math.inf
        return self.horizon

    def count_others(self, worker: str) -> int:
        """Return how many steps of the other workers were applied."""
        return self.counts.total() - self.counts[worker]


def serve_table(server: str, pull: Edge, push: Edge, mode: Mode) -> ServedTable:
    """Return the table of a server whose workers agree by a mode, before the first step."""
    served = ServedTable(pull, push, keeps=mode.compensate is not None)
    if mode.in_rounds:
        served.round = {}
    if pull.declared and pull.declared.moves == "sums":
        served.sums = WorkerSums(push, server)
    if served.sums is not None or isinstance(mode, Geo):
        # Workers start from the initial values, without a message.
        served.answers = {worker: {0: Answer(0, ())} for worker in push.sources}
    return served
