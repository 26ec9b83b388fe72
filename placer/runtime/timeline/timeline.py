"""Combines the slices of all nodes on one clock, with arrows for messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from placer.channel.interface import Array
from placer.runtime.control.timeline_window import Window
from placer.runtime.timeline.clocks import Clock
from placer.runtime.timeline.part import Part
from placer.runtime.timeline.recorder import PROGRAM, RECEIVED, SENT, STEP, WOKEN

Row = tuple[int, int]
"""The position of a slice: the index of the part and of the row in it."""
KIND, WOKEN_AT = 4, 7
"""Columns of a slice: its kind, and the time when another thread ended the wait."""
SERVICE = "service of "
"""The prefix of the track name of the hook `serve`."""


@dataclass(frozen=True)
class Timeline:
    """The slices of a run.

    Attributes:
        nodes: the names of all nodes, in the order of the plan.
        parts: the slices of the nodes, in the same order. After a failure, parts of some
            nodes may be missing.
        window: the steps to record.
        clocks: the clocks of nodes that do not share the control node's clock.
        failure: why the run has failed; empty if it has not.
        model, build: the name and the digest of the plan.
    """

    nodes: Sequence[str]
    parts: Sequence[Part]
    window: Window
    clocks: Mapping[str, Clock] = field(default_factory=dict)
    failure: str = ""
    model: str = ""
    build: str = ""

    @cached_property
    def slices(self) -> Sequence[Array]:
        """The slices of each part on the control node's clock, relative to the first slice.

        They are sorted by track and start; an outer slice comes before its inner slices.
        """
        aligned = []
        for part in self.parts:
            slices = part.slices.copy()
            clock = self.clocks.get(part.node, Clock())
            slices[:, 2:4] = clock.align(slices[:, 2:4])
            is_woken = slices[:, KIND] == WOKEN
            slices[is_woken, WOKEN_AT] = clock.align(slices[is_woken, WOKEN_AT])
            # Of slices with equal times, the slice that was recorded last is the outer one.
            recorded = -np.arange(len(slices))
            keys = (recorded, -slices[:, 3], slices[:, 2], slices[:, 0])
            aligned.append(slices[np.lexsort(keys)])
        first = min((int(each[:, 2].min()) for each in aligned if len(each)), default=0)
        for each in aligned:
            each[:, 2:4] -= first
            each[each[:, KIND] == WOKEN, WOKEN_AT] -= first
        return aligned

    @cached_property
    def arrows(self) -> Sequence[tuple[Row, Row]]:
        """Pairs of the slice that sent a message and the slice that received it.

        Messages with the same source, target and key arrive in the order of sending. A
        message that was sent or received outside the window has no arrow.
        """
        sent: dict[tuple[object, ...], list[Row]] = defaultdict(list)
        received: dict[tuple[object, ...], list[Row]] = defaultdict(list)
        for number, (part, slices) in enumerate(
            zip(self.parts, self.slices, strict=True)
        ):
            rows = np.flatnonzero(slices[:, KIND])
            for row in rows[np.argsort(slices[rows, 3], kind="stable")]:
                _, _, _, _, kind, peer, *key, _, _ = slices[row].tolist()
                other = part.names[peer][1]
                if kind == SENT:
                    sent[part.node, other, *key].append((number, int(row)))
                elif kind == RECEIVED:
                    received[other, part.node, *key].append((number, int(row)))
        return [
            arrow
            for message, rows in sent.items()
            for arrow in zip(rows, received.get(message, ()), strict=False)
        ]

    @cached_property
    def wakes(self) -> Sequence[tuple[int, int, Row]]:
        """The waits that another thread of the node ended: the track of that thread, the
        time when its work ended, and the wait.

        The time is moved into a slice of the track: between two slices, to the end of the
        earlier slice.
        """
        found = []
        for number, slices in enumerate(self.slices):
            rows = np.flatnonzero(slices[:, KIND] == WOKEN)
            spans = {
                track: (of_track[:, 2], np.maximum.accumulate(of_track[:, 3]))
                for track in np.unique(slices[rows, 6]).tolist()
                if len(of_track := slices[slices[:, 0] == track])
            }
            for row in rows.tolist():
                track, at = (int(each) for each in slices[row, [6, WOKEN_AT]])
                starts, ends = spans.get(track, ((), ()))
                started = int(np.searchsorted(starts, at, "right"))
                if started:
                    at = min(at, int(ends[started - 1]) - 1)
                    found.append((track, at, (number, row)))
        return found

    @property
    def missing(self) -> Sequence[str]:
        """The nodes whose slices are missing."""
        known = {part.node for part in self.parts}
        return [node for node in self.nodes if node not in known]

    def shares(self) -> dict[str, dict[str, float]]:
        """Return, for each node, the fraction of the steps' time in each category.

        The time of a slice excludes its inner slices. Only one thread counts: the thread of
        the program, or the thread of the hook `serve` on nodes with this hook. The category
        `step` is the time outside all other slices.
        """
        return {
            part.node: shares
            for part, slices in zip(self.parts, self.slices, strict=True)
            if (shares := _shares(part, slices))
        }


def _shares(part: Part, slices: Array) -> dict[str, float]:
    is_step = np.array([c == STEP and n.startswith("step ") for c, n in part.names])
    steps = (
        slices[(slices[:, 0] == 0) & is_step[slices[:, 1]]] if len(slices) else slices
    )
    if not len(steps):
        return {}
    track = part.tracks.index(PROGRAM)
    spans = [(int(start), int(end)) for start, end in steps[:, 2:4]]
    for number, thread in enumerate(part.tracks):
        if thread.startswith(SERVICE):  # this thread has no slices for steps
            track, spans = number, [(spans[0][0], spans[-1][1])]
    total = sum(end - start for start, end in spans)
    found: dict[str, int] = defaultdict(int)
    rows = slices[slices[:, 0] == track]
    starts = rows[:, 2]
    for start, end in spans:
        low, high = np.searchsorted(starts, (start, end))
        for name, seconds in _own_times(rows[low:high], end):
            found[part.names[name][0]] += seconds
    found[STEP] = total - sum(each for key, each in found.items() if key != STEP)
    return {category: each / total for category, each in sorted(found.items())}


def _own_times(rows: Array, until: int) -> Iterator[tuple[int, int]]:
    inner: list[list[int]] = []  # of each open slice: its end, its name, its own time
    for _, name, start, end, *_ in rows.tolist():
        end = min(end, until)
        while inner and inner[-1][0] <= start:
            _, outer, own = inner.pop()
            yield outer, own
        if inner:
            inner[-1][2] -= end - start
        inner.append([end, name, end - start])
    for _, outer, own in inner:
        yield outer, own
