"""The sections of a page about runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placer.report.numbers import format_count, format_ms
from placer.report.page.charts.curves import curve_charts
from placer.report.page.charts.shares import shares_chart
from placer.report.page.facts import Page, RunFacts
from placer.report.page.html import (
    Section,
    chart_with_title,
    html_table,
    paragraph,
    scroll,
)
from placer.report.page.svg import element, text
from placer.report.run_about import run_time


def run_sections(page: Page) -> Iterator[Section]:
    """Yield the runs and their curves."""
    if page.runs:
        title = "Runs" if len(page.runs) > 1 else "Run"
        yield Section("runs", title, title, _runs(page))
    if page.curves:
        content = scroll(curve_charts(page.curves, page.runs))
        yield Section("curves", "Curves", "Curves", content)


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
        if run.load:
            parts.append(paragraph(f"{run.name}: {run.load}."))
        if run.chain:
            parts.append(paragraph(f"{run.name}: {run.chain}"))
    if len(page.runs) == 1:
        (run,) = page.runs
        parts.append(_about(run))
        if run.staleness:
            parts.append(paragraph(f"Staleness of the gradients: {run.staleness}."))
    for run in page.runs:
        if run.notes:
            title = f"Warnings and events of {run.name}"
            notes = [element("li", text(note)) for note in run.notes]
            parts += [element("h3", text(title)), element("ul", *notes)]
        if page.step_time is None or len(page.runs) > 1:
            parts.append(_waits(run))
    return "".join(parts)


def _waits(run: RunFacts) -> str:
    shares = {
        node: {"wait": share, "step": 1 - share} for node, share in run.waits.items()
    }
    title = f"The share of the time in which nodes of {run.name} waited for other nodes"
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
        *(f"train {name}" for name in trained),
        "steps",
        "samples/s",
        "time",
        *(["step (median)"] if is_timed else []),
        *settings,
    )
    rows = [
        (
            f"{run.name} (best)" if run.is_best and len(runs) > 1 else run.name,
            run.ended,
            *(_metric(run.best.get(name)) for name in evaluated),
            *([_step(run)] if evaluated else []),
            *(_metric(run.metrics.get(name)) for name in trained),
            format_count(run.steps),
            format_count(run.samples_per_second) if run.samples_per_second else "",
            run_time(run.seconds),
            *([_median(run)] if is_timed else []),
            *(run.settings.get(key, "") for key in settings),
        )
        for run in runs
    ]
    numbers = range(2, len(names) - len(settings))
    return html_table(names, rows, numbers=numbers, code={0})


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
