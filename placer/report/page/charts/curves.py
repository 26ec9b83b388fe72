"""Draws the metrics of one or several runs over their steps or their time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from placer.report.numbers import format_count, plural
from placer.report.page.charts.axes import (
    SMALL,
    Scale,
    format_ticks,
    label_at,
    line,
    nice_ticks,
    step_ticks,
)
from placer.report.page.charts.figure import WIDTH, chart
from placer.report.page.charts.markers import DASHES, marker
from placer.report.page.charts.ranges import Point, shown_range
from placer.report.page.charts.smoothing import smooth
from placer.report.page.curves import decimate
from placer.report.page.facts import Curve, RunFacts
from placer.report.page.svg import element, text
from placer.report.page.text_fit import shorten, text_width

MOST_RUNS = 8
"""The largest number of runs in a chart."""
MOST_METRICS = 24
_WIDTH, _HEIGHT = 536, 260
_TOP, _BOTTOM = 42, 26
_DRAWN = 600
_MANY_DOTS, _FEW_DOTS = 60, 12
_MANY_RUNS: Final = 3
"""From this number of runs on, a chart has only averages, and few markers."""
_AXES: Final = {"step": "steps", "seconds": "seconds"}


def curve_charts(curves: Sequence[Curve], runs: Sequence[RunFacts] = ()) -> str:
    """Draw the legend and the charts of `draw_curves` in one HTML element.

    With several runs, each entry of the legend is a button that hides a run. With the time
    of all points, a reader chooses between steps and seconds. Empty without charts.
    """
    names, left_out = _runs(curves, runs)
    metrics = _metrics(curves, names)
    if not metrics:
        return ""
    axes = list(_AXES) if all(c.seconds for c in curves) else ["step"]
    tools = [_entries(names)] if len(names) > 1 else []
    if len(axes) > 1:
        options = [
            element("option", text(label), value=axis) for axis, label in _AXES.items()
        ]
        choice = element("select", *options, class_="axis", autocomplete="off")
        tools.insert(0, element("label", text("Over"), choice))
    notes = _notes(metrics, names, runs)
    if left_out:
        notes = f"{plural(left_out, 'more run')} without a line; {notes}"
    return element(
        "div",
        element("div", *tools, class_="row") if tools else "",
        element("p", text(f"{notes}.".capitalize()), class_="hint"),
        *(
            element(
                "div",
                *_charts(curves, metrics, names, runs, axis),
                class_=f"curves over-{axis}",
            )
            for axis in axes
        ),
        class_="metrics",
    )


def draw_curves(
    curves: Sequence[Curve], runs: Sequence[RunFacts] = ()
) -> tuple[str, ...]:
    """Draw a legend of the runs, and a chart per metric; nothing without curves.

    A thin line is the value of each step, and a thick line is its average. A line with
    markers is the evaluations. A ring marks the best evaluation. A metric with fewer than
    two points has no chart.

    Args:
        curves: the curves of all runs.
        runs: the runs with their best evaluations.
    """
    names, left_out = _runs(curves, runs)
    metrics = _metrics(curves, names)
    if not metrics:
        return ()
    notes = _notes(metrics, names, runs)
    charts = _charts(curves, metrics, names, runs, "step")
    return (_legend(names, left_out, notes), *charts)


def _metrics(curves: Sequence[Curve], names: Sequence[str]) -> list[str]:
    """Return the metrics that have a line of one of some runs."""
    drawn = (c for c in curves if c.run in names and len(c.points) > 1)
    return list(dict.fromkeys(curve.metric for curve in drawn))


def _runs(curves: Sequence[Curve], runs: Sequence[RunFacts]) -> tuple[list[str], int]:
    """Return the runs to draw, and the number of runs left out."""
    names = list(dict.fromkeys(curve.run for curve in curves))
    best = [run.name for run in runs if run.is_best]
    # The best run is drawn even if it is late in the list.
    drawn = sorted(names, key=lambda name: name not in best)[:MOST_RUNS]
    return [name for name in names if name in drawn], len(names) - len(drawn)


def _notes(
    metrics: Sequence[str], names: Sequence[str], runs: Sequence[RunFacts]
) -> str:
    notes = "thin line: each step; thick line: average; markers: evaluations"
    if len(names) >= _MANY_RUNS:
        notes = "lines: averages over steps; markers: evaluations"
    marked = [run for run in runs if _is_marked(run, runs)]
    if marked:
        monitor = next((run.compared for run in marked if run.compared), "")
        notes += (
            f"; ring: at the best {monitor}" if monitor else "; ring: best evaluation"
        )
    left_out = len(metrics) - MOST_METRICS
    if left_out > 0:
        notes += f"; {plural(left_out, 'metric')} more without a chart"
    return notes


def _is_marked(run: RunFacts, runs: Sequence[RunFacts]) -> bool:
    """Return True if the best evaluation of a run has a ring."""
    return run.is_best or (len(runs) == 1 and not run.is_last)


def _entries(names: Sequence[str]) -> str:
    """Return the legend as HTML. Each entry is a button that hides a run."""
    entries = (
        element(
            "button",
            element(
                "svg",
                *_sample(i, 11),
                class_="chart",
                width=44,
                height=22,
                aria_hidden="true",
            ),
            text(name),
            type="button",
            data_run=i,
            aria_pressed="true",
            title=f"Hide or show {name}",
        )
        for i, name in enumerate(names)
    )
    return element("div", *entries, class_="entries")


def _legend(names: Sequence[str], left_out: int, notes: str) -> str:
    """Draw a legend of all runs as a chart, a line per run."""
    parts, y = [], 14.0
    for i, name in enumerate(names):
        parts += [*_sample(i, y - 4), label_at(54, y, shorten(name, 460, 13))]
        y += 20
    if left_out:
        parts.append(label_at(54, y, f"and {plural(left_out, 'run')} more", "t2"))
        y += 20
    parts.append(label_at(0, y, notes, "t2"))
    label = f"Legend of {plural(len(names), 'run')}."
    return chart(label, y + 8, *parts, width=2 * _WIDTH + 28)


def _sample(number: int, y: float) -> tuple[str, str]:
    """Return the line and the marker of a run for a legend."""
    class_ = f"smooth run-{number}"
    return (
        element("path", class_=class_, d=f"M0,{y}h44", **_dash(number)),
        marker(number, 22, y),
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """A curve over one axis: its run, the number of the run, and points (x, value)."""

    run: str
    number: int
    is_evaluation: bool
    points: Sequence[Point]
    steps: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Plot:
    x: Scale
    y: Scale
    width: float


def _charts(
    curves: Sequence[Curve],
    metrics: Sequence[str],
    names: Sequence[str],
    runs: Sequence[RunFacts],
    axis: str,
) -> Iterator[str]:
    width = WIDTH if len(metrics) == 1 else _WIDTH
    for metric in metrics[:MOST_METRICS]:
        lines = [
            _line_of(curve, names.index(curve.run), axis)
            for curve in curves
            if curve.metric == metric and curve.run in names
        ]
        if lines:
            yield _chart(metric, lines, runs, axis, width)


def _line_of(curve: Curve, number: int, axis: str) -> _Line:
    steps = [step for step, _ in curve.points]
    x = curve.seconds if axis == "seconds" else steps
    values = [value for _, value in curve.points]
    points = list(zip(x, values, strict=True))
    return _Line(curve.run, number, curve.is_evaluation, points, steps)


def _chart(
    metric: str,
    lines: Sequence[_Line],
    runs: Sequence[RunFacts],
    axis: str,
    width: float,
) -> str:
    by_run: dict[str, list[Point]] = {}
    for each in lines:
        by_run.setdefault(each.run, []).extend(each.points)
    best = next((run.name for run in runs if run.is_best), None)
    low, high, cut = shown_range(by_run, best)
    ticks = list(nice_ticks(low, high, most=6))
    labels = format_ticks(ticks)
    left = max(text_width(each, SMALL) for each in labels) + 10
    every = [x for each in lines for x, _ in each.points]
    first, last = min(every), max(every)
    end = max(last, first + 1) if axis == "step" else last
    plot = _Plot(
        Scale(first, end, left, width - 12),
        Scale(low, high, _HEIGHT - _BOTTOM, _TOP),
        width,
    )
    parts = [label_at(0, 14, shorten(metric, width / 2, 13), "t b")]
    parts += _axes(plot, ticks, labels, left, axis)
    clip = f"clip-{axis}-{_identifier(metric)}"
    area = element(
        "rect",
        x=left - 6,
        y=_TOP - 6,
        width=width - left,
        height=_HEIGHT - _TOP - _BOTTOM + 12,
    )
    parts.append(element("clipPath", area, id=clip))
    is_crowded = len(by_run) >= _MANY_RUNS
    drawn = [
        part
        for each in sorted(lines, key=lambda each: each.is_evaluation)
        for part in _curve(each, plot, is_crowded=is_crowded)
    ]
    parts.append(element("g", *drawn, clip_path=f"url(#{clip})"))
    if cut:
        room = width / 2 - 24
        parts.append(label_at(width - 12, 14, shorten(cut, room, SMALL), "t2", "end"))
    parts += _best(metric, runs, lines, plot)
    final = ", ".join(f"{each.run} ends at {each.points[-1][1]:.4g}" for each in lines)
    label = f"{metric} over {_AXES[axis]}: {final}."
    return chart(label, _HEIGHT, *parts, width=width)


def _identifier(metric: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}" for c in metric)


def _axes(
    plot: _Plot, ticks: Sequence[float], labels: Sequence[str], left: float, axis: str
) -> Iterator[str]:
    right = plot.width - 12
    for tick, string in zip(ticks, labels, strict=True):
        y = plot.y(tick)
        yield line(left, y, right, y, "grid")
        yield label_at(left - 6, y + 4, string, "t2", anchor="end")
    end = -inf
    for at, string in _x_ticks(plot.x, axis):
        x, half = plot.x(at), text_width(string, SMALL) / 2
        if x - half > end + 8 and x + half < right - text_width(axis, SMALL) - 8:
            yield label_at(x, _HEIGHT - 8, string, "t2", anchor="middle")
            end = x + half
    yield label_at(right, _HEIGHT - 8, axis, "t2", anchor="end")


def _x_ticks(scale: Scale, axis: str) -> Iterable[tuple[float, str]]:
    if axis == "step":
        return step_ticks(round(scale.low), round(scale.high))
    ticks = nice_ticks(scale.low, scale.high)
    return zip(ticks, format_ticks(ticks), strict=True)


def _curve(each: _Line, plot: _Plot, *, is_crowded: bool) -> Iterator[str]:
    number, run = each.number, f"run-{each.number}"
    if each.is_evaluation:
        yield _path(each.points, plot, f"evaluation {run}", number)
        count = len(each.points)
        every = max(1, -(-count // _FEW_DOTS)) if is_crowded else 1
        if count > _MANY_DOTS and not is_crowded:
            return
        for i in range((count - 1) % every, count, every):
            x, value = each.points[i]
            at = f"{each.run}: {value:.4g} after step {format_count(each.steps[i])}"
            yield marker(number, plot.x(x), plot.y(value), at)
        return
    points = decimate(each.points, _DRAWN)
    averages = smooth(each.points)
    if averages is None:
        yield _path(points, plot, f"smooth {run}", number)
        return
    if not is_crowded:
        yield _path(points, plot, f"raw {run}", 0)
    yield _path(averages, plot, f"smooth {run}", number)


def _path(points: Iterable[Point], plot: _Plot, class_: str, number: int) -> str:
    corners = (f"{plot.x(x):.1f},{plot.y(value):.1f}" for x, value in points)
    return element("path", class_=class_, d=f"M{'L'.join(corners)}", **_dash(number))


def _dash(number: int) -> dict[str, str]:
    dash = DASHES[number % len(DASHES)]
    return {"stroke_dasharray": dash} if dash else {}


def _best(
    metric: str, runs: Sequence[RunFacts], lines: Sequence[_Line], plot: _Plot
) -> Iterator[str]:
    """Yield a ring and a label at the best evaluation."""
    for run in runs:
        if not _is_marked(run, runs) or metric not in run.best:
            continue
        value = run.best[metric]
        found = _position(run, lines)
        if found is None or not plot.y.low <= value <= plot.y.high:
            continue
        number, at = found
        x, y = plot.x(at), plot.y(value)
        yield element("circle", class_=f"ring run-{number}", cx=x, cy=y, r=8)
        string = f"{value:.4g} at step {format_count(run.best_step or 0)}"
        if run.compared not in ("", metric):
            string = f"{value:.4g} at the best {run.compared}"
        half = text_width(string, SMALL) / 2
        middle = min(max(x, plot.x.start + half), plot.x.end - half)
        above = y - 14 if y - 14 > _TOP + 8 else y + 22
        class_ = f"t2 b halo run-{number}"
        yield label_at(middle, above, string, class_, anchor="middle")


def _position(run: RunFacts, lines: Sequence[_Line]) -> tuple[int, float] | None:
    """Return the number of a run, and the position of its best evaluation on the x axis."""
    for each in sorted(lines, key=lambda each: not each.is_evaluation):
        if each.run == run.name and run.best_step is not None:
            distances = [abs(step - run.best_step) for step in each.steps]
            at = distances.index(min(distances))  # a long curve has fewer points
            return each.number, each.points[at][0]
    return None
