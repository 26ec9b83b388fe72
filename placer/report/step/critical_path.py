"""Finds the longest chain of work and messages that a step consists of.

The search goes backwards from the end of the step. Work leads to its start on the same
thread. A wait leads to the thread whose message, or value, ended the wait, at the time when
that thread had sent it. The pieces therefore fill the time of the step exactly.

The time is O(n log n) for n slices in the step: each thread is divided once into its
innermost slices, and each piece needs one binary search.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from statistics import median
from typing import Final, NamedTuple

from placer.report.step.facts import Piece
from placer.report.step.steps import Step
from placer.report.step.trace import (
    OUTSIDE,
    Arrow,
    Message,
    Thread,
    Trace,
)
from placer.runtime.timeline.recorder import SEND, STEP, WAIT

MESSAGE: Final = "message"
"""The category of the time between the end of sending and the start of receiving."""
OTHER: Final = "other"
"""The category of time outside all calls of a program."""


class Leaf(NamedTuple):
    """A part of a thread's time with one innermost slice, or with `OUTSIDE`."""

    start: int
    end: int
    slice: int


def leaves_of(thread: Thread, begin: int, end: int) -> list[Leaf]:
    """Divide the time of a thread between two times by its innermost slices."""
    leaves: list[Leaf] = []
    at = begin

    def add(until: int, index: int) -> None:
        nonlocal at
        if (until := min(until, end)) > at:
            leaves.append(Leaf(at, until, index))
            at = until

    stack: list[int] = []
    overlapping = ((thread.ends > begin) & (thread.starts < end)).nonzero()[0]
    for index in overlapping.tolist():
        start = int(thread.starts[index])
        while stack and thread.ends[stack[-1]] <= start:
            inner = stack.pop()
            add(int(thread.ends[inner]), inner)
        add(start, stack[-1] if stack else OUTSIDE)
        stack.append(index)
    while stack:
        inner = stack.pop()
        add(int(thread.ends[inner]), inner)
    add(end, OUTSIDE)
    return leaves


def longest_chain(trace: Trace, step: Step) -> tuple[Piece, ...]:
    """Return the pieces of the chain, from the start of the step to its end."""
    return _Walk(trace, step).pieces()


@dataclass
class _Walk:
    trace: Trace
    step: Step
    _pieces: list[Piece] = field(default_factory=list)
    _leaves: dict[int, list[Leaf]] = field(default_factory=dict)
    _followed: set[Arrow] = field(default_factory=set)
    """Arrows that the walk has followed. It follows each arrow once, so it ends even if
    clocks disagree."""

    def pieces(self) -> tuple[Piece, ...]:
        at, here = self.step.end, self.step.thread
        while at > self.step.begin:
            at, here = self._step_back(at, here)
        return tuple(reversed(self._pieces))

    def _step_back(self, at: int, here: int) -> tuple[int, int]:
        """Return the time and the thread to which the work before `at` leads."""
        thread = self.trace.threads[here]
        leaf = self._leaf(here, at)
        if leaf.slice == OUTSIDE:
            self._add(leaf.start, at, here, OTHER, OTHER)
            return leaf.start, here
        label = self.trace.label(thread, leaf.slice)
        if label.category == WAIT:
            if (arrow := self._cause(here, leaf, at)) is not None:
                self._followed.add(arrow)
                if not self._is_late(arrow, leaf):
                    return self._follow(arrow, at, label.name)
                message = self._of(arrow) if arrow.is_message else None
                category = MESSAGE if message else label.category
                self._add(leaf.start, at, here, category, label.name, message)
                return leaf.start, here
            if (arrow := self._sent_in(here, leaf.slice)) is not None:
                return self._wait_for_room(arrow, leaf, at)
        category, name = label
        if category == STEP:
            category = name = OTHER
        message = self._message(here, leaf.slice)
        self._add(leaf.start, at, here, category, name, message)
        return leaf.start, here

    def _cause(self, here: int, leaf: Leaf, at: int) -> Arrow | None:
        """Return the arrow that ended a wait, or None if none is known."""
        arrow = self.trace.arrow_into(here, leaf.start, at)
        if arrow is None and at < leaf.end:
            # With inexact clocks, the message may end the wait after `at`.
            ending = self.trace.arrow_into(here, leaf.start, leaf.end)
            arrow = ending if ending and self._sent(ending) < at else None
        if arrow is None:
            # A wait inside a receiving slice waits for the rest of the message.
            thread = self.trace.threads[here]
            for index in thread.around(leaf.slice):
                message = thread.messages.get(index)
                if message is not None and message.target == thread.node:
                    start = int(thread.starts[index])
                    arrow = self.trace.arrow_into(here, start - 1, start)
        return None if arrow in self._followed else arrow

    def _is_late(self, arrow: Arrow, leaf: Leaf) -> bool:
        """Return True if a message or value had probably arrived before its wait began.

        Such a wait only takes the message. The work before the wait is the cause.
        """
        sent = self._sent(arrow)
        if sent > leaf.start or arrow.received < leaf.start:
            return False
        if not arrow.is_message:
            return True
        transit = self._transits.get(self._route(arrow))
        if transit is None:  # unknown: compare the time before the wait with the wait
            return arrow.received - leaf.start < leaf.start - sent
        return sent + transit < leaf.start

    @cached_property
    def _transits(self) -> dict[tuple[int, int, str], float]:
        """The median time from the end of sending to the end of a wait that began earlier,
        by the threads and the values of a message."""
        found: dict[tuple[int, int, str], list[int]] = defaultdict(list)
        for arrow in self.trace.arrows:
            if not arrow.is_message:
                continue
            thread = self.trace.threads[arrow.target]
            index = thread.begun_at(arrow.received - 1)
            if index == OUTSIDE or self.trace.label(thread, index).category != WAIT:
                continue
            sent = self._sent(arrow)
            if int(thread.starts[index]) < sent:
                found[self._route(arrow)].append(max(0, arrow.received - sent))
        return {route: median(times) for route, times in found.items()}

    def _route(self, arrow: Arrow) -> tuple[int, int, str]:
        return arrow.source, arrow.target, self._of(arrow).values

    def _follow(self, arrow: Arrow, at: int, name: str) -> tuple[int, int]:
        """Go to the other end of an arrow; the time between the ends becomes a piece.

        `name` is the name of the wait that the arrow ended.
        """
        sent = self._sent(arrow)
        before = max(self.step.begin, min(at, sent))
        if arrow.is_message:
            self._add_message(before, at, arrow.target, self._of(arrow))
        else:
            self._add(before, at, arrow.target, WAIT, name)
        return before, arrow.source

    def _sent(self, arrow: Arrow) -> int:
        """Return the time when the source of an arrow had sent the message or value."""
        if not arrow.is_message:
            return arrow.sent
        thread = self.trace.threads[arrow.source]
        index = thread.begun_at(arrow.sent)
        if index == OUTSIDE:
            return arrow.sent
        # An update that opens a message sends its values as it computes them.
        outer = int(thread.parents[index])
        if outer != OUTSIDE:
            category = self.trace.label(thread, outer).category
            if category not in (SEND, STEP, WAIT):
                index = outer
        return int(thread.ends[index])

    def _wait_for_room(self, arrow: Arrow, leaf: Leaf, at: int) -> tuple[int, int]:
        """Continue from a wait until a receiver has room for a message.

        If the receiver works, the wait leads to its work. If the receiver waits too, both
        wait for the network, and the time is that of the message.
        """
        if arrow not in self._followed:
            self._followed.add(arrow)
            receiver = self.trace.threads[arrow.target]
            doing = self._leaf(arrow.target, at).slice
            if doing == OUTSIDE or self.trace.label(receiver, doing).category != WAIT:
                return at, arrow.target
        self._add_message(leaf.start, at, arrow.source, self._of(arrow))
        return leaf.start, arrow.source

    def _sent_in(self, here: int, index: int) -> Arrow | None:
        """Return the arrow of the message that a slice sends, or one around it."""
        thread = self.trace.threads[here]
        for outer in thread.around(index):
            message = thread.messages.get(outer)
            if message is not None and message.source == thread.node:
                return self.trace.arrow_of(here, int(thread.starts[outer]))
        return None

    def _message(self, here: int, index: int) -> Message | None:
        """Return the message of a slice. The sender knows its bytes if the receiver does
        not, because it applied the message in pieces."""
        thread = self.trace.threads[here]
        message = thread.messages.get(index)
        if message is None or message.nbytes:
            return message
        start = int(thread.starts[index])
        arrow = self.trace.arrow_into(here, start - 1, start)
        return message._replace(nbytes=self._of(arrow).nbytes) if arrow else message

    def _of(self, arrow: Arrow) -> Message:
        """Return the message of an arrow, as its sender knows it."""
        sender = self.trace.threads[arrow.source]
        sent = sender.messages.get(sender.begun_at(arrow.sent))
        target = self.trace.threads[arrow.target].node
        return sent or Message(sender.node, target, MESSAGE, 0)

    def _leaf(self, thread: int, at: int) -> Leaf:
        """Return the part of a thread's time that contains the moment before `at`."""
        if thread not in self._leaves:
            found = self.trace.threads[thread]
            self._leaves[thread] = leaves_of(found, self.step.begin, self.step.end)
        leaves = self._leaves[thread]
        return leaves[bisect.bisect_left(leaves, at, key=attrgetter("end"))]

    def _add_message(self, start: int, end: int, here: int, message: Message) -> None:
        self._add(start, end, here, MESSAGE, message.values, message)

    def _add(
        self,
        start: int,
        end: int,
        here: int,
        category: str,
        name: str,
        message: Message | None = None,
    ) -> None:
        if end <= start:
            return
        thread, begin = self.trace.threads[here], self.step.begin
        self._pieces.append(
            Piece(
                thread.node,
                thread.name,
                category,
                name if message is None else message.values,
                (start - begin) / 1e9,
                (end - begin) / 1e9,
                source="" if message is None else message.source,
                target="" if message is None else message.target,
                nbytes=0 if message is None else message.nbytes,
            )
        )
