"""The curves of a run, from the file `history.jsonl`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TypeVar

import msgspec

from placer.errors import PlacerError
from placer.report.page.facts import Curve
from placer.report.run_files import read_lines

MOST_POINTS = 2000
"""The largest number of points of a curve."""

_Timed = tuple[int, float, float]
"""A step, the value of a metric, and the time of the step in seconds."""
_Point = TypeVar("_Point", tuple[int, float], tuple[float, float], _Timed)


class HistoryLine(msgspec.Struct, frozen=True):
    """The metrics of a step, its learning rates, and the metrics of the evaluation after
    it. None: not finite.

    Attributes:
        seconds: the time from the start of the first step to the end of this step.
    """

    step: int
    seconds: float = 0.0
    metrics: dict[str, float | None] = {}
    learning_rates: dict[str, float | None] = {}
    eval: dict[str, float | None] | None = None


def curves_of(run: str, history: Path) -> tuple[Curve, ...]:
    """Return the curve of each metric of a run, of training first.

    Values that are not finite are left out. A missing file has no curves.

    Args:
        run: the name of the run.
        history: the file with one JSON object per line.

    Raises:
        PlacerError: the file cannot be read, or a line is damaged.
    """
    return curves_from(run, _lines(history))


def curves_from(run: str, lines: Iterable[HistoryLine]) -> tuple[Curve, ...]:
    """Return the curve of each metric and learning rate, from the lines of a history.

    A learning rate that does not change has no curve.
    """
    trained: dict[str, list[_Timed]] = {}
    evaluated: dict[str, list[_Timed]] = {}
    rates: dict[str, list[_Timed]] = {}
    for line in lines:
        _add(trained, line, line.metrics)
        _add(evaluated, line, line.eval or {})
        _add(rates, line, line.learning_rates)
    for name, points in rates.items():
        if len({rate for _, rate, _ in points}) > 1:
            of_table = f" of {name}" if len(rates) > 1 else ""
            trained[f"learning rate{of_table}"] = points
    return tuple(
        _curve(run, metric, decimate(points), is_evaluation=is_evaluation)
        for curves, is_evaluation in ((trained, False), (evaluated, True))
        for metric, points in curves.items()
    )


def _add(
    curves: dict[str, list[_Timed]],
    line: HistoryLine,
    metrics: Mapping[str, float | None],
) -> None:
    for metric, value in metrics.items():
        if value is not None and isfinite(value):
            curves.setdefault(metric, []).append((line.step, value, line.seconds))


def _curve(
    run: str, metric: str, points: Sequence[_Timed], *, is_evaluation: bool
) -> Curve:
    return Curve(
        run,
        metric,
        is_evaluation,
        tuple((step, value) for step, value, _ in points),
        tuple(seconds for _, _, seconds in points),
    )


def _lines(history: Path) -> Iterator[HistoryLine]:
    for number, line in enumerate(read_lines(history), 1):
        try:
            yield msgspec.convert(line, HistoryLine)
        except msgspec.ValidationError as error:
            raise PlacerError(
                f"cannot read '{history}': line {number} is damaged: {error}",
                hint="remove the line to read the rest of the file",
            ) from error


def decimate(points: Sequence[_Point], most: int = MOST_POINTS) -> tuple[_Point, ...]:
    """Return at most `most` points of a curve, which looks the same.

    The steps are divided into equal ranges. Each range keeps its smallest and its largest
    value; the first and the last point are kept as well.

    >>> decimate([(1, 5.0), (2, 1.0), (3, 9.0), (4, 2.0), (5, 3.0), (6, 4.0)], most=4)
    ((1, 5.0), (2, 1.0), (3, 9.0), (6, 4.0))
    """
    if len(points) <= most:
        return tuple(points)
    inner = points[1:-1]
    ranges = (most - 2) // 2
    kept = [points[0]]
    for i in range(ranges):
        part = inner[len(inner) * i // ranges : len(inner) * (i + 1) // ranges]
        low = min(part, key=lambda point: point[1])
        high = max(part, key=lambda point: point[1])
        kept += sorted({low, high})
    kept.append(points[-1])
    return tuple(kept)
