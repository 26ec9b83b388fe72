"""Collects the facts about the time of a training step from a trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from placer.compiler.graph.graph import Graph
from placer.plan.plan import Plan
from placer.report.step.advice import MUCH, advice_of
from placer.report.step.critical_path import leaves_of, longest_chain
from placer.report.step.facts import (
    Piece,
    SentBytes,
    SliceFacts,
    StepTime,
    ThreadRow,
)
from placer.report.step.no_advice import reason_without_advice
from placer.report.step.parts import group_of, item_of, kind_of, parts_of
from placer.report.step.sentence import sentence_of
from placer.report.step.steps import (
    Step,
    median_step,
    middle_steps,
    spans_of,
    steps_of,
)
from placer.report.step.trace import OUTSIDE, Message, Numbers, Thread, Trace
from placer.report.step.trace_file import read_trace
from placer.report.step.works import works_of
from placer.runtime.control.timeline_window import Window
from placer.runtime.timeline.part import Part
from placer.runtime.timeline.recorder import COLUMNS, PROGRAM, STEP
from placer.runtime.timeline.timeline import Timeline


def read_step_time(path: Path, plan: Plan, graph: Graph | None) -> StepTime | None:
    """Return the facts about the median step of a trace file; see `step_time`.

    Raises:
        PlacerError: if the file is no trace of this build.
    """
    return step_time(read_trace(path, plan), plan, graph)


def step_time(trace: Trace, plan: Plan, graph: Graph | None) -> StepTime | None:
    """Return the facts about the median step, or None if the trace has no whole step.

    Args:
        trace: the trace of a run.
        plan: the plan of the run.
        graph: the graph of a training step, for advice about a pipeline; may be None.
    """
    steps = steps_of(trace, plan)
    if not steps:
        return None
    step, middle = median_step(steps), middle_steps(steps)
    chain = longest_chain(trace, step)
    chains = [longest_chain(trace, each) for each in middle]
    parts, kinds = parts_of(chains, item_of), parts_of(chains, kind_of)
    # The trace of a failed run may have only some of the nodes, and thus of the messages.
    sent = tuple(sent_in(trace, step))
    is_complete = {*trace.nodes}.issuperset(node.name for node in plan.nodes)
    found = StepTime(
        step=step.number,
        seconds=step.duration / 1e9,
        steps=len(steps),
        chain=chain,
        shares=shares_of(trace),
        rows=tuple(rows_of(trace, step)),
        sentence=sentence_of(
            trace, step, len(steps), middle, parts, parts_of(chains, group_of), kinds
        ),
        advice=(),
        measured=measured_in(trace, step),
        sent=sent if is_complete else (),
        parts=parts,
    )
    typical = _mean_of(found, trace, middle, chains)
    is_local = not trace.uncertainty
    edges = {edge.id for edge in plan.step_edges}
    advice = advice_of(
        typical,
        works_of(trace),
        plan,
        graph,
        # An evaluation after the step has edges of its own.
        nbytes=sum(each.nbytes for each in sent if each.edge in edges),
        is_local=is_local,
    )
    given = [*advice]
    if not given:
        has_microbatches = plan.settings.train.microbatches > 1
        reason = reason_without_advice(kinds, MUCH, has_microbatches=has_microbatches)
        given = [reason] if reason else []
    return msgspec.structs.replace(found, advice=tuple(given))


def _mean_of(
    found: StepTime,
    trace: Trace,
    steps: Sequence[Step],
    chains: Sequence[Sequence[Piece]],
) -> StepTime:
    """Return facts in which each piece and each call has its mean time over several steps.
    `chains` has the longest chain of each step."""
    scale = 1 / len(steps)
    measured: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for step in steps:
        for node, times in measured_in(trace, step).items():
            for name, seconds in times.items():
                measured[node][name] += scale * seconds
    chain = [
        msgspec.structs.replace(piece, start=scale * piece.start, end=scale * piece.end)
        for each in chains
        for piece in each
    ]
    return msgspec.structs.replace(
        found,
        seconds=scale * sum(step.duration for step in steps) / 1e9,
        chain=tuple(chain),
        measured=measured,
    )


def shares_of(trace: Trace) -> dict[str, dict[str, float]]:
    """Return the fraction of the recorded time in each category, by node.

    These are the shares that a run prints after its end; see `Timeline.shares`.
    """
    parts = []
    for node in trace.nodes:
        threads = [thread for thread in trace.threads if thread.node == node]
        names = tuple(thread.name for thread in threads)
        if PROGRAM in names:
            slices = [_columns(at, thread) for at, thread in enumerate(threads)]
            joined = np.concatenate(slices)
            parts.append(Part(node, tuple(trace.labels), names, joined))
    return Timeline(trace.nodes, parts, Window(1, 1)).shares()


def _columns(track: int, thread: Thread) -> Numbers:
    columns = np.zeros((len(thread.starts), COLUMNS), np.int64)
    columns[:, 0], columns[:, 1] = track, thread.labels
    columns[:, 2], columns[:, 3] = thread.starts, thread.ends
    return columns[::-1]  # a recorder records inner slices first


def rows_of(trace: Trace, step: Step) -> Iterator[ThreadRow]:
    """Yield the slices of each thread that is not idle during a step."""
    for thread in trace.threads:
        overlapping = (thread.ends > step.begin) & (thread.starts < step.end)
        slices, depths = [], {OUTSIDE: -1}
        for index in overlapping.nonzero()[0].tolist():
            depths[index] = depth = depths[int(thread.parents[index])] + 1
            start = max(int(thread.starts[index]), step.begin) - step.begin
            end = min(int(thread.ends[index]), step.end) - step.begin
            label = trace.label(thread, index)
            slices.append(SliceFacts(start / 1e9, end / 1e9, *label, depth))
        if slices:
            yield ThreadRow(thread.node, thread.name, tuple(slices))


def sent_in(trace: Trace, step: Step) -> Iterator[SentBytes]:
    """Yield the bytes of the messages between nodes that have the number of a step."""
    found: dict[tuple[int, str, str], int] = defaultdict(int)
    sent: dict[Message, list[tuple[int, int]]] = defaultdict(list)
    received: dict[Message, list[int]] = defaultdict(list)
    for thread in trace.threads:
        for index, message in thread.messages.items():
            if message.step != step.number:
                continue
            if message.source == thread.node:
                key = message.edge, message.source, message.target
                found[key] += message.nbytes
                span = int(thread.starts[index]), int(thread.ends[index])
                sent[message].append(span)
            else:
                received[message].append(int(thread.ends[index]))
    slowest: dict[tuple[int, str, str], float] = defaultdict(float)
    for message, spans in sent.items():
        key = message.edge, message.source, message.target
        ends = received.get(message, [])
        # A message may arrive before its sender has returned from sending it.
        for (start, until), end in zip(sorted(spans), sorted(ends), strict=False):
            slowest[key] = max(slowest[key], (max(until, end) - start) / 1e9)
    for key, nbytes in found.items():
        yield SentBytes(*key, nbytes, slowest[key])


def measured_in(trace: Trace, step: Step) -> dict[str, dict[str, float]]:
    """Return the own time of each call, by node and by name, in seconds.

    The program of a node with the step in common counts during this step of the node,
    which may be shifted in time on servers. Other threads count during the time of the
    step. A wait inside a call does not count as time of the call.
    """
    found: dict[str, dict[str, float]] = {}
    for number, thread in enumerate(trace.threads):
        begin, end = step.begin, step.end
        if step.is_common and thread.name == PROGRAM:
            spans = spans_of(trace, number)
            begin, end = spans.get(step.number, (begin, end))
        times: dict[str, int] = defaultdict(int)
        for leaf in leaves_of(thread, begin, end):
            if leaf.slice == OUTSIDE:
                continue
            category, name = trace.label(thread, leaf.slice)
            if category != STEP:
                times[name] += leaf.end - leaf.start
        of_node = found.setdefault(thread.node, {})
        for name, nanoseconds in times.items():
            of_node[name] = of_node.get(name, 0.0) + nanoseconds / 1e9
    return found
