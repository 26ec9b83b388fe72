"""The sections of a page about runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from placer.place.node_kinds import NodeId
from placer.report.numbers import format_count, format_ms
from placer.report.page.charts.curves import curve_charts
from placer.report.page.charts.shares import shares_chart
from placer.report.page.facts import Page, RunFacts
from placer.report.page.html import (
    Section,
    chart_with_title,
    html_table,
    paragraph,
)
from placer.report.page.svg import element, text
from placer.report.run_about import run_time


def run_sections(page: Page) -> Iterator[Section]:
    """Yield the runs and their curves."""
    if page.runs:
        title = "Runs" if len(page.runs) > 1 else "Run"
        yield Section("runs", title, _runs(page))
    if charts := curve_charts(page.curves, page.runs):
        yield Section("curves", "Curves", charts)


def errors_of(runs: Sequence[RunFacts]) -> str:
    """Return the first line of the error of each run, as HTML."""
    return "".join(
        paragraph(f"{run.name} {run.ended}: {_first_line(run.error)}", "lead strong")
        for run in runs
        if run.error
    )


def _runs(page: Page) -> str:
    parts = [
        paragraph(page.best, "lead strong") if page.best else "",
        _table(page.runs),
    ]
    for run in page.runs:
        if run.waits and len(page.runs) > 1:
            parts.append(paragraph(f"{run.name}: {_waiting(run)}."))
        if run.load:
            parts.append(paragraph(f"{run.name}: {run.load}."))
        if run.chain:
            parts.append(paragraph(f"{run.name}: {run.chain}"))
    if len(page.runs) == 1:
        (run,) = page.runs
        parts.append(_about(run))
        if run.staleness:
            parts.append(paragraph(run.staleness))
        if page.step_time is None:  # A trace has more exact shares.
            parts.append(_waits(run))
    for run in page.runs:
        if run.notes:
            title = f"Warnings and events of {run.name}"
            notes = [element("li", text(note)) for note in run.notes]
            parts += [
                element("h3", text(title)),
                element("ul", *notes, class_="advice"),
            ]
    return "".join(parts)


def _waits(run: RunFacts) -> str:
    shares = {
        node: {"wait": share, "step": 1 - share} for node, share in run.waits.items()
    }
    title = "The share of the time in which nodes waited for other nodes"
    return chart_with_title(title, shares_chart(shares))


def _about(run: RunFacts) -> str:
    rows = [(label, value) for label, value in run.about.items()]
    return html_table(("setting", "value"), rows, code={1})


def _table(runs: Sequence[RunFacts]) -> str:
    settings = list(dict.fromkeys(key for run in runs for key in run.settings))
    evaluated = list(dict.fromkeys(key for run in runs for key in run.best))
    evaluated.sort(key=lambda name: all(run.compared != name for run in runs))
    trained = list(dict.fromkeys(key for run in runs for key in run.metrics))
    is_timed = any(run.step_seconds is not None for run in runs)
    names = (
        "run",
        "ended",
        *(f"eval {name}" for name in evaluated),
        *(["at step"] if evaluated else []),
        *short_names(settings),
        "steps",
        "samples/s",
        "time",
        *(["step (median)"] if is_timed else []),
        *(f"train {name}" for name in trained),
    )
    rows = [
        (
            f"{run.name} (best)" if run.is_best and len(runs) > 1 else run.name,
            run.ended,
            *(_metric(run.best.get(name)) for name in evaluated),
            *([_step(run)] if evaluated else []),
            *(run.settings.get(key, "") for key in settings),
            format_count(run.steps),
            format_count(run.samples_per_second) if run.samples_per_second else "",
            run_time(run.seconds),
            *([_median(run)] if is_timed else []),
            *(_metric(run.metrics.get(name)) for name in trained),
        )
        for run in runs
    ]
    first = 2 + len(evaluated) + bool(evaluated)
    words = {0, 1, *range(first, first + len(settings))}
    numbers = {*range(len(names))} - words
    return html_table(names, rows, numbers=numbers, code={0})


def short_names(keys: Sequence[str]) -> list[str]:
    """Return keys without leading parts, as short as they stay distinct.

    >>> short_names(["train.optimizer.learning_rate", "train.optimizer.op"])
    ['learning_rate', 'optimizer.op']
    >>> short_names(["data.train.batch", "data.eval.batch", "nodes.worker"])
    ['train.batch', 'eval.batch', 'nodes.worker']
    """
    return [_short_name(key, [each for each in keys if each != key]) for key in keys]


def _short_name(key: str, others: Sequence[str]) -> str:
    if key.startswith("nodes."):
        return key
    parts = key.split(".")
    for i in reversed(range(1, len(parts))):
        end = ".".join(parts[i:])
        is_unique = not any(f".{other}".endswith(f".{end}") for other in others)
        if is_unique and end != "op":  # the optimizer of a spec
            return end
    return key


def _waiting(run: RunFacts) -> str:
    """Return a sentence about the mean share of waiting of each kind of node."""
    shares: dict[str, list[float]] = {}
    for node, share in run.waits.items():
        shares.setdefault(NodeId(node).kind, []).append(share)
    each_kind = [f"{kind} {100 * mean(each):.0f} %" for kind, each in shares.items()]
    return f"share of the time spent waiting for other nodes: {', '.join(each_kind)}"


def _step(run: RunFacts) -> str:
    if run.best_step is None:
        return ""
    return f"{format_count(run.best_step)} {'last' if run.is_last else 'best'}"


def _median(run: RunFacts) -> str:
    return "" if run.step_seconds is None else format_ms(run.step_seconds)


def _metric(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _first_line(error: str) -> str:
    return error.partition("\n")[0]
