"""What all nodes of a run have done: their slices on one clock, and the arrows between
them."""

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
from placer.runtime.timeline.recorder import PROGRAM, RECEIVED, SENT, STEP

Row = tuple[int, int]
"""A slice: the number of the node, and the number of its row."""
SERVICE = "service of "
"""How the name of the track of the hook `serve` begins."""


@dataclass(frozen=True)
class Timeline:
    """The slices of a run.

    Attributes:
        nodes: the names of all nodes, in the order of the plan.
        parts: the slices of nodes, in this order; after a failure not of all nodes.
        clocks: the clocks of nodes that do not share that of the control node.
        window: the steps that were to be recorded.
        failure: why the run has failed, or nothing.
    """

    nodes: Sequence[str]
    parts: Sequence[Part]
    window: Window
    clocks: Mapping[str, Clock] = field(default_factory=dict)
    failure: str = ""

    @cached_property
    def slices(self) -> Sequence[Array]:
        """The slices of each part on the clock of the control node, from the first one
        on: by track, in the order of their starts, a slice before those inside it."""
        aligned = []
        for part in self.parts:
            slices = part.slices.copy()
            clock = self.clocks.get(part.node, Clock())
            slices[:, 2:4] = clock.align(slices[:, 2:4])
            # Of slices with the same times, the one that was recorded last is outside.
            recorded = -np.arange(len(slices))
            keys = (recorded, -slices[:, 3], slices[:, 2], slices[:, 0])
            aligned.append(slices[np.lexsort(keys)])
        first = min((int(each[:, 2].min()) for each in aligned if len(each)), default=0)
        for each in aligned:
            each[:, 2:4] -= first
        return aligned

    @cached_property
    def arrows(self) -> Sequence[tuple[Row, Row]]:
        """From the slice that has sent a message to that which has received it.

        Messages of one source, target and key are received in the order in which they
        were sent. A message that was sent or received outside the window has no arrow.
        """
        sent: dict[tuple[object, ...], list[Row]] = defaultdict(list)
        received: dict[tuple[object, ...], list[Row]] = defaultdict(list)
        for number, (part, slices) in enumerate(
            zip(self.parts, self.slices, strict=True)
        ):
            rows = np.flatnonzero(slices[:, 4])
            for row in rows[np.argsort(slices[rows, 3], kind="stable")]:
                _, _, _, _, direction, peer, *key, _ = slices[row].tolist()
                other = part.names[peer][1]
                if direction == SENT:
                    sent[part.node, other, *key].append((number, int(row)))
                elif direction == RECEIVED:
                    received[other, part.node, *key].append((number, int(row)))
        return [
            arrow
            for message, rows in sent.items()
            for arrow in zip(rows, received.get(message, ()), strict=False)
        ]

    @property
    def missing(self) -> Sequence[str]:
        """The nodes whose slices are not known."""
        known = {part.node for part in self.parts}
        return [node for node in self.nodes if node not in known]

    def shares(self) -> dict[str, dict[str, float]]:
        """Return by node and category which part of the time of steps it takes.

        The time of a slice counts without that of the slices inside it. It is that of
        the thread of the program, or of the hook `serve` on nodes that have one; `step`
        is what is in no other slice.
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
        if thread.startswith(SERVICE):  # it does not know of steps
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
    """Yield the name of each slice of a track, and the time outside its inner slices, up
    to a time."""
    inner: list[list[int]] = []  # the end of each outer slice, its name, its own time
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
