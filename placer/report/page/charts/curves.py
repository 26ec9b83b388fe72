"""Draws the metrics of one or several runs over their steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

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
from placer.report.page.charts.figure import chart
from placer.report.page.charts.markers import DASHES, marker
from placer.report.page.charts.smoothing import smooth
from placer.report.page.curves import decimate
from placer.report.page.facts import Curve, RunFacts
from placer.report.page.svg import element
from placer.report.page.text_fit import shorten, text_width

MOST_RUNS = 8
"""The largest number of runs in a chart."""
MOST_METRICS = 24
_WIDTH, _HEIGHT = 536, 260
_TOP, _BOTTOM = 42, 26
_DRAWN = 600
_MANY_DOTS = 60
_FIRST, _SPIKE = 0.1, 3.0
"""The first steps, as a fraction of all steps. They are cut off if the range of all values
is this many times the range of the later values."""

Point = tuple[int, float]


def curve_charts(curves: Sequence[Curve], runs: Sequence[RunFacts] = ()) -> str:
    """Draw the legend and the charts of `draw_curves` in one HTML element."""
    drawn = draw_curves(curves, runs)
    if not drawn:
        return ""
    return element("div", drawn[0], element("div", *drawn[1:], class_="curves"))


def draw_curves(
    curves: Sequence[Curve], runs: Sequence[RunFacts] = ()
) -> tuple[str, ...]:
    """Draw a legend of the runs, and a chart per metric; nothing without curves.

    A thin line is the value of each step, and a thick line is its average. A line with
    markers is the evaluations. A ring marks the best evaluation.

    Args:
        curves: the curves of all runs.
        runs: the runs with their best evaluations.
    """
    names = list(dict.fromkeys(curve.run for curve in curves))
    best = [run.name for run in runs if run.is_best]
    # The best run is drawn even if it is late in the list.
    drawn = sorted(names, key=lambda name: name not in best)[:MOST_RUNS]
    drawn = [name for name in names if name in drawn]
    metrics = list(dict.fromkeys(c.metric for c in curves if c.run in drawn))
    if not metrics:
        return ()
    charts = (
        _chart(
            [c for c in curves if c.metric == metric and c.run in drawn], drawn, runs
        )
        for metric in metrics[:MOST_METRICS]
    )
    left_out = len(metrics) - MOST_METRICS
    notes = "thin line: each step; thick line: average; markers: evaluations"
    if any(_is_marked(run, runs) for run in runs):
        notes += "; ring: best evaluation"
    if left_out > 0:
        notes += f"; {plural(left_out, 'metric')} more without a chart"
    return (_legend(drawn, len(names) - len(drawn), notes), *charts)


def _is_marked(run: RunFacts, runs: Sequence[RunFacts]) -> bool:
    """Return True if the best evaluation of a run has a ring."""
    return run.is_best or (len(runs) == 1 and not run.is_last)


def _legend(names: Sequence[str], left_out: int, notes: str) -> str:
    """Draw a legend of all runs as a chart, a line per run."""
    parts, y = [], 14.0
    for i, name in enumerate(names):
        parts += [
            element("path", class_=f"smooth run-{i}", d=f"M0,{y - 4}h44", **_dash(i)),
            marker(i, 22, y - 4),
            label_at(54, y, shorten(name, 460, 13)),
        ]
        y += 20
    if left_out:
        parts.append(label_at(54, y, f"and {plural(left_out, 'run')} more", "t2"))
        y += 20
    parts.append(label_at(0, y, notes, "t2"))
    label = f"Legend of {plural(len(names), 'run')}."
    return chart(label, y + 8, *parts, width=2 * _WIDTH + 28)


@dataclass(frozen=True, slots=True)
class _Plot:
    x: Scale
    y: Scale


def _chart(
    curves: Sequence[Curve], names: Sequence[str], runs: Sequence[RunFacts]
) -> str:
    metric = curves[0].metric
    steps = [step for curve in curves for step, _ in curve.points]
    low, high, cut = _range(curves)
    ticks = list(nice_ticks(low, high, most=6))
    labels = format_ticks(ticks)
    left = max(text_width(each, SMALL) for each in labels) + 10
    first, last = min(steps), max(steps)
    plot = _Plot(
        Scale(first, max(last, first + 1), left, _WIDTH - 12),
        Scale(low, high, _HEIGHT - _BOTTOM, _TOP),
    )
    parts = [label_at(0, 14, shorten(metric, _WIDTH / 2, 13), "t b")]
    parts += _axes(plot, ticks, labels, left)
    clip = f"clip-{_identifier(metric)}"
    parts.append(
        element(
            "clipPath",
            element(
                "rect",
                x=left - 6,
                y=_TOP - 6,
                width=_WIDTH - left,
                height=_HEIGHT - _TOP - _BOTTOM + 12,
            ),
            id=clip,
        )
    )
    lines = [
        part
        for curve in sorted(curves, key=lambda curve: curve.is_evaluation)
        for part in _curve(curve, names.index(curve.run), plot)
    ]
    parts.append(element("g", *lines, clip_path=f"url(#{clip})"))
    if cut:
        parts.append(label_at(_WIDTH - 12, 14, cut, "t2", anchor="end"))
    parts += _best(metric, runs, names, plot)
    final = ", ".join(
        f"{curve.run} ends at {curve.points[-1][1]:.4g}" for curve in curves
    )
    return chart(f"{metric} over steps: {final}.", _HEIGHT, *parts, width=_WIDTH)


def _identifier(metric: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}" for c in metric)


def _range(curves: Sequence[Curve]) -> tuple[float, float, str]:
    """Return the range of the y axis, and a note if the first steps are outside."""
    points = [point for curve in curves for point in curve.points]
    low, high = _extent(points)
    first, last = min(step for step, _ in points), max(step for step, _ in points)
    begin = first + (last - first) * _FIRST
    later_low, later_high = _extent([point for point in points if point[0] >= begin])
    note = ""
    if high - low > _SPIKE * (later_high - later_low) > 0:
        is_above = high - later_high > later_low - low
        outside = f"up to {high:.3g}" if is_above else f"from {low:.3g}"
        note = f"cut off: first steps, {outside}"
        low, high = later_low, later_high
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    bottom = low - margin
    return (max(0.0, bottom) if low >= 0 else bottom), high + margin, note


def _extent(points: Sequence[Point]) -> tuple[float, float]:
    values = [value for _, value in points]
    return min(values), max(values)


def _axes(
    plot: _Plot, ticks: Sequence[float], labels: Sequence[str], left: float
) -> Iterator[str]:
    for tick, text in zip(ticks, labels, strict=True):
        y = plot.y(tick)
        yield line(left, y, _WIDTH - 12, y, "grid")
        yield label_at(left - 6, y + 4, text, "t2", anchor="end")
    end = -inf
    for step, text in step_ticks(round(plot.x.low), round(plot.x.high)):
        x, half = plot.x(step), text_width(text, SMALL) / 2
        if x - half > end + 8 and x + half < _WIDTH - 40:
            yield label_at(x, _HEIGHT - 8, text, "t2", anchor="middle")
            end = x + half
    yield label_at(_WIDTH - 12, _HEIGHT - 8, "step", "t2", anchor="end")


def _curve(curve: Curve, number: int, plot: _Plot) -> Iterator[str]:
    run = f"run-{number}"
    if curve.is_evaluation:
        yield _path(curve.points, plot, f"evaluation {run}", number)
        if len(curve.points) <= _MANY_DOTS:
            for step, value in curve.points:
                at = f"{curve.run}: {value:.4g} after step {format_count(step)}"
                yield marker(number, plot.x(step), plot.y(value), at)
        return
    points = decimate(curve.points, _DRAWN)
    averages = smooth(curve.points)
    if averages is None:
        yield _path(points, plot, f"smooth {run}", number)
        return
    yield _path(points, plot, f"raw {run}", 0)
    yield _path(averages, plot, f"smooth {run}", number)


def _path(points: Iterable[Point], plot: _Plot, class_: str, number: int) -> str:
    corners = (f"{plot.x(step):.1f},{plot.y(value):.1f}" for step, value in points)
    return element("path", class_=class_, d=f"M{'L'.join(corners)}", **_dash(number))


def _dash(number: int) -> dict[str, str]:
    dash = DASHES[number % len(DASHES)]
    return {"stroke_dasharray": dash} if dash else {}


def _best(
    metric: str, runs: Sequence[RunFacts], names: Sequence[str], plot: _Plot
) -> Iterator[str]:
    """Yield a ring and a label at the best evaluation."""
    for run in runs:
        is_marked = _is_marked(run, runs)
        if not is_marked or run.best_step is None or metric not in run.best:
            continue
        if run.name not in names or run.best[metric] > plot.y.high:
            continue
        x, y = plot.x(run.best_step), plot.y(run.best[metric])
        yield element("circle", class_="ring", cx=x, cy=y, r=8)
        text = f"{run.best[metric]:.4g} at step {format_count(run.best_step)}"
        half = text_width(text, SMALL) / 2
        at = min(max(x, plot.x.start + half), plot.x.end - half)
        above = y - 14 if y - 14 > _TOP + 8 else y + 22
        yield label_at(at, above, text, "t2 b halo", anchor="middle")
