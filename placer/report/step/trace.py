"""The content of a trace: the slices of threads, and the arrows between them."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

OUTSIDE: Final = -1
"""The index that stands for the time outside all slices."""

Numbers = NDArray[np.int64]


class Label(NamedTuple):
    """The category and the name of slices."""

    category: str
    name: str


class Message(NamedTuple):
    """The message that a slice sends or receives; `values` names its values."""

    source: str
    target: str
    values: str
    nbytes: int
    edge: int = 0
    step: int = 0


class Arrow(NamedTuple):
    """An event of one thread that ended a wait of another thread. Times are nanoseconds.

    Attributes:
        source, target: indices in `Trace.threads`.
        sent: the start of the slice that sends a message; between threads of a node, the
            time when a thread handed a value over.
        received: the end of the wait, which is the start of the slice that receives.
        is_message: whether the arrow is a message between nodes.
    """

    source: int
    sent: int
    target: int
    received: int
    is_message: bool


@dataclass(frozen=True)
class Thread:
    """The slices of a thread, in the order of their start; outer slices come first.

    Attributes:
        starts, ends: the times in nanoseconds.
        labels: the index of each slice's label in `Trace.labels`.
        parents: the index of the slice around each slice, or `OUTSIDE`.
        messages: the messages of slices, by the index of the slice.
    """

    node: str
    name: str
    starts: Numbers
    ends: Numbers
    labels: Numbers
    parents: Numbers
    messages: Mapping[int, Message]

    def begun_at(self, time: int) -> int:
        """Return the last slice that started at or before a time, or `OUTSIDE`."""
        return int(np.searchsorted(self.starts, time, "right")) - 1

    def around(self, index: int) -> Iterator[int]:
        """Yield a slice and the slices around it, from the inside to the outside."""
        while index != OUTSIDE:
            yield index
            index = int(self.parents[index])


@dataclass(frozen=True)
class Trace:
    """The content of a trace. All times are on the clock of the control node.

    Attributes:
        nodes: the names of the nodes.
        threads: the threads of all nodes.
        labels: the labels of all slices.
        arrows: the events that ended waits, in the order of their ends.
        uncertainty: the largest error of a node's times, in nanoseconds. Nodes with the
            clock of the control node are left out.
        full_in: the first step with slices that did not fit into the trace, by node.
        model: the name of the model.
        build: the digest of the plan.
    """

    nodes: Sequence[str]
    threads: Sequence[Thread]
    labels: Sequence[Label]
    arrows: Sequence[Arrow]
    uncertainty: Mapping[str, int] = field(default_factory=dict)
    full_in: Mapping[str, int] = field(default_factory=dict)
    model: str = ""
    build: str = ""

    def label(self, thread: Thread, index: int) -> Label:
        """Return the label of a slice."""
        return self.labels[int(thread.labels[index])]

    @cached_property
    def _received(self) -> Mapping[int, tuple[list[int], list[Arrow]]]:
        found: dict[int, tuple[list[int], list[Arrow]]] = defaultdict(lambda: ([], []))
        for arrow in self.arrows:
            times, arrows = found[arrow.target]
            times.append(arrow.received)
            arrows.append(arrow)
        return dict(found)

    @cached_property
    def _sent(self) -> Mapping[tuple[int, int], Arrow]:
        return {(a.source, a.sent): a for a in self.arrows if a.is_message}

    def arrow_into(self, thread: int, after: int, until: int) -> Arrow | None:
        """Return the last arrow that ended at a thread in a range of time, or None."""
        times, arrows = self._received.get(thread, ((), ()))
        at = bisect.bisect_right(times, until) - 1
        return arrows[at] if at >= 0 and times[at] > after else None

    def arrow_of(self, thread: int, sent: int) -> Arrow | None:
        """Return the arrow of the message that a thread began to send at a time."""
        return self._sent.get((thread, sent))
