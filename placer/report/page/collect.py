"""Collects all facts of a page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

import msgspec

from placer.compiler.build_or_spec import LoadedBuild, load_build
from placer.errors import PlacerError
from placer.place.ids import format_nodes
from placer.report.best_run import best_sentence, run_names
from placer.report.layers import find_layers
from placer.report.metric_bytes import LEAST, metric_bytes
from placer.report.numbers import format_count, format_flops, format_size, plural
from placer.report.page.curves import curves_of
from placer.report.page.details import list_details
from placer.report.page.facts import Curve, LayerRow, Page, RunFacts, Total
from placer.report.page.memory import memory_rows
from placer.report.page.placement import PlacedGraph, draw, drawn_graph, place
from placer.report.page.runs import run_facts
from placer.report.page.schedule import declared_schedule, measured_schedule
from placer.report.page.subject import Subject
from placer.report.page.tables import balance_of, sparse_rows, table_rows
from placer.report.run_files import HISTORY, RunEnd
from placer.report.step.facts import StepTime
from placer.report.step.step_time import read_step_time

_FEWEST: Final = 2
"""The smallest number of points of a curve."""


def collect(subject: Subject, command: str) -> tuple[Page, tuple[str, ...]]:
    """Return the facts of a page, and notes about parts that are missing.

    Args:
        subject: the build, the runs and the trace.
        command: the command line, which the page shows.

    Raises:
        PlacerError: a file of the build, of a run or of the trace is damaged, or the given
            trace is of another build.
    """
    runs, notes = _with_traces(run_facts(subject.runs), subject)
    page = Page(
        subject.build.plan.name if subject.build else subject.runs[0].command.name,
        command,
        source=subject.source,
        runs=runs,
        best=best_sentence(subject.runs),
        curves=tuple(_curves(subject)),
    )
    if subject.build is None:
        return page, notes
    page, more = _with_build(page, subject, subject.build)
    return page, (*notes, *more)


def _with_traces(
    runs: tuple[RunFacts, ...], subject: Subject
) -> tuple[tuple[RunFacts, ...], tuple[str, ...]]:
    """Return the facts of several runs with the median steps of their traces, and notes
    about traces that cannot be used."""
    found, notes = list(runs), []
    for i, trace in enumerate(subject.traces):
        folder = subject.runs[i].build
        if trace is None or folder is None:
            continue
        build = load_build(folder)
        try:
            step_time = read_step_time(trace, build.plan, build.graphs[0])
        except PlacerError as error:
            notes.append(f"the trace of {runs[i].name} is not used: {error.message}")
            continue
        if step_time is not None:
            found[i] = msgspec.structs.replace(
                runs[i], step_seconds=step_time.seconds, chain=step_time.sentence
            )
    return tuple(found), tuple(notes)


def _curves(subject: Subject) -> Iterator[Curve]:
    """Yield the curves of all runs, without curves that are a single point."""
    found = [
        curve
        for name, run in zip(run_names(subject.runs), subject.runs, strict=True)
        for curve in curves_of(name, run.folder / HISTORY)
    ]
    drawn = {
        (curve.run, curve.metric) for curve in found if len(curve.points) >= _FEWEST
    }
    for curve in found:
        # A single evaluation is a marker next to the curve of training.
        if (curve.run, curve.metric) in drawn and (
            curve.is_evaluation or len(curve.points) >= _FEWEST
        ):
            yield curve


def _with_build(
    page: Page, subject: Subject, build: LoadedBuild
) -> tuple[Page, tuple[str, ...]]:
    plan, graphs = build.plan, build.graphs
    step, drawn = graphs[0], drawn_graph(graphs)
    trains = drawn is step
    notes: tuple[str, ...] = ()
    untimed = _how_to_measure(subject, build) if trains else ""
    step_time: StepTime | None = None
    if subject.trace is not None:
        try:
            step_time = read_step_time(subject.trace, plan, step)
        except PlacerError as error:
            if not subject.is_own_trace:
                raise
            notes = (f"the trace of the run is not used: {error.message}",)
        else:
            untimed = "" if step_time else f"'{subject.trace}' contains no whole step."
    placed = place(build, drawn)
    schedule = declared_schedule(step, plan.settings.train.schedule)
    return (
        msgspec.structs.replace(
            page,
            totals=tuple(_totals(placed, trains=trains)),
            placement=draw(placed, step_time),
            details=list_details(placed),
            untimed=untimed,
            step_time=step_time,
            memory=memory_rows(plan),
            tables=table_rows(plan),
            sparse=sparse_rows(plan, _end(subject)),
            balance=balance_of(plan, step),
            schedule=schedule,
            measured_schedule=measured_schedule(step_time, schedule)
            if step_time
            else (),
            layers=tuple(
                LayerRow(each.name, each.kind, each.output, each.parameters, each.place)
                for each in find_layers(plan, drawn)
            ),
        ),
        notes,
    )


def _end(subject: Subject) -> RunEnd:
    """Return the end of the run of a page about one run; otherwise one without facts."""
    return subject.runs[0].end if len(subject.runs) == 1 else RunEnd("")


def _how_to_measure(subject: Subject, build: LoadedBuild) -> str:
    if len(subject.runs) > 1:
        return ""
    path = build.path
    verb = "launch" if path.is_dir() else "train"
    command = ["placer", verb, str(path), "--steps", "100", "--trace", "trace.json"]
    command += [word for each in subject.overrides for word in ("--set", each)]
    return (
        f"Not measured. Run `{shlex.join(command)}`. This makes a new run. Then open the"
        " page of the new run with `placer report RUN`."
    )


def _totals(placed: PlacedGraph, *, trains: bool) -> Iterator[Total]:
    plan, edges = placed.build.plan, placed.edges
    whole = "a step" if trains else "a batch"
    yield Total(format_nodes(node.name for node in plan.nodes), "nodes")
    yield Total(format_count(placed.graph.batch), f"rows in {whole}")
    flops = sum(sum(of_ops.values()) for of_ops in placed.flops)
    yield Total(format_flops(flops), f"in {whole}")
    if edges:
        bound = "≤ " if any(edge.is_by_key for edge in edges) else ""
        sent = format_size(sum(edge.nbytes for edge in edges))
        value = f"{bound}{sent} on {plural(len(edges), 'edge')}"
        yield Total(value, f"sent in {whole}")
    if (of_metrics := metric_bytes(plan, placed.graph)) >= LEAST:
        yield Total(format_size(of_metrics), f"of metrics sent in {whole}")
    yield Total(format_count(len(placed.graph.ops)), "ops")
