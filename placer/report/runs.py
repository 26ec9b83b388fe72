"""The output of `placer runs`: the differences, metrics, speed and end of each run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from placer.plan.settings_by_key import setting_text
from placer.report.best_run import best_runs, best_sentence, run_names
from placer.report.compared_settings import (
    by_model,
    comparable_settings,
    differing_settings,
    setting_name,
)
from placer.report.fitted_table import ListColumn, fitting_columns, list_table
from placer.report.numbers import format_count, format_time
from placer.report.run_about import about_run, notes_of, other_load, run_time
from placer.report.run_files import FAILED, INTERRUPTED, Run


def runs_view(runs: Sequence[Run], screen: Console) -> Iterator[RenderableType]:
    """Yield a table of the runs of each model, and sentences about the runs.

    A star marks the best run. On a narrow screen, the start is left out first, then the
    metrics of training, then settings. The settings that are left out of the table follow
    in lines. A single run is shown with its settings and its warnings.
    """
    for of_model in by_model(runs):
        columns = [*_columns(of_model)]
        kept = fitting_columns(columns, screen)
        yield list_table(kept)
        settings = [each for each in columns if _SETTINGS <= each.drop < _TRAIN]
        yield from _left_out(of_model, [each for each in settings if each not in kept])
        if len(of_model) > 1 and any(run.evaluation for run in of_model):
            yield Text(best_sentence(of_model))
        for run in of_model:
            yield from _end_lines(run)
    if len(runs) == 1:
        yield from _about_lines(runs[0])


def _end_lines(run: Run) -> Iterator[Text]:
    """Yield the error of a run, its rise of the loss, and the load of other programs."""
    if run.end.ended in (FAILED, INTERRUPTED) and run.end.error:
        line = run.end.error.partition("\n")[0]
        style = "red" if run.end.ended == FAILED else ""
        yield Text(f"{run.folder.name}: {line}", style)
    if run.end.diverged:
        yield Text(f"{run.folder.name}: {run.end.diverged}")
    if load := other_load(run):
        yield Text(f"{run.folder.name}: {load}")


def _about_lines(run: Run) -> Iterator[Text]:
    """Yield the settings of a single run and its warnings."""
    about = about_run(run)
    width = max(map(len, about))
    for name, value in about.items():
        yield Text(f"  {name:{width}}  {value}")
    for note in notes_of(run):
        yield Text(f"  {note}")


def _left_out(
    runs: Sequence[Run], settings: Sequence[ListColumn]
) -> Iterator[RenderableType]:
    """Yield a line with settings of the first run, and for each later run a line with the
    settings in which it differs from the first run."""
    for i, run in enumerate(runs if settings else ()):
        shown = [
            f"{each.name}={each.cells[i] or 'unset'}"
            for each in settings
            if i == 0 or each.cells[i] != each.cells[0]
        ]
        same = f"as {runs[0].folder.name}"
        yield Text(f"{run.folder.name}: {'  '.join(shown) or same}")


def _columns(runs: Sequence[Run]) -> Iterator[ListColumn]:
    compared = [run.command.monitor.metric for run in runs if run.command.monitor]
    evaluated = [run.evaluation for run in runs]
    best = best_runs(runs) if len(runs) > 1 else []
    evaluations = _metrics("eval", evaluated, first=compared, drop=1)
    trained = _metrics("train", [run.end.metrics for run in runs], drop=_TRAIN)
    steps = [format_count(run.end.steps) for run in runs]
    speeds = [run.end.samples_per_second for run in runs]
    started = [format_time(run.command.started) for run in runs]
    names = run_names(runs)
    starred = [
        f"{name} *" if run in best else name
        for name, run in zip(names, runs, strict=True)
    ]
    yield ListColumn("run", starred)
    yield from evaluations
    if any(run.end.eval for run in runs):
        yield ListColumn("at step", [_evaluation_step(run) for run in runs])
    yield from trained
    yield ListColumn("steps", steps, is_number=True)
    cells = [format_count(speed) if speed else "" for speed in speeds]
    yield ListColumn("samples/s", cells, is_number=True)
    cells = [run_time(run.end.seconds) for run in runs]
    yield ListColumn("time", cells, is_number=True)
    settings = comparable_settings(runs)
    for i, key in enumerate(differing_settings(runs)):
        cells = [setting_text(each.get(key)) for each in settings]
        yield ListColumn(setting_name(key, runs), cells, drop=_SETTINGS + i)
    yield ListColumn("started", started, drop=2 * _TRAIN)
    yield ListColumn("", [run.end.ended for run in runs])


_SETTINGS = 1 << 10
"""Larger than the number of metrics."""
_TRAIN = 1 << 20
"""Larger than the number of settings."""


def _evaluation_step(run: Run) -> str:
    """Return the step of the shown evaluation, and whether it is the best or the last."""
    end = run.end
    if end.best_eval:
        return f"{format_count(end.best_step or 0)} best"
    if not end.eval:
        return ""
    if end.eval_step is not None:
        return f"{format_count(end.eval_step)} last"
    return "before shrinking" if "shrink" in run.command.options else "last"


def _metrics(
    kind: str,
    values: Sequence[Mapping[str, float | None]],
    *,
    first: Sequence[str] = (),
    drop: int,
) -> Iterator[ListColumn]:
    """Yield a column for each metric of an evaluation or of training. The columns start
    with the metrics in `first`."""
    names = dict.fromkeys(chain.from_iterable(values))
    ordered = sorted(names, key=lambda name: name not in first)
    for i, name in enumerate(ordered, start=drop):
        cells = [_metric(each, name) for each in values]
        yield ListColumn(f"{kind} {name}", cells, is_number=True, drop=i)


def _metric(metrics: Mapping[str, float | None], name: str) -> str:
    if name not in metrics:
        return ""
    value = metrics[name]
    return "not finite" if value is None else f"{value:.4g}"


def runs_facts(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the facts about runs for JSON, and the settings in which the runs of each
    model differ."""
    models = by_model(runs)
    settings = {
        run.folder: each
        for of_model in models
        for run, each in zip(of_model, comparable_settings(of_model), strict=True)
    }
    return {
        "runs": [
            {
                "folder": str(run.folder),
                **msgspec.to_builtins(run.command),
                "settings": settings[run.folder],
                **msgspec.to_builtins(run.end),
            }
            for run in runs
        ],
        "differ": {
            of_model[0].command.name: differing_settings(of_model)
            for of_model in models
        },
    }
