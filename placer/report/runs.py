"""The output of `placer runs`: the differences, metrics, speed and end of each run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from placer.report.fitted_table import ListColumn, fitting_columns, list_table
from placer.report.numbers import format_count, format_time
from placer.report.run_files import (
    FAILED,
    GRAPH_DIGEST,
    INTERRUPTED,
    MODEL_DIGEST,
    Run,
)
from placer.runtime.control.options import OPTIONS

_OUTPUTS = {o.name for o in OPTIONS if o.file in ("written", "folder")}
"""Options that name outputs of a run, which do not change the training."""
_OF_OPTIMIZER = ("optimizer.", "sparse_tables.")
"""The first words of the settings of tables."""
_FLAGS = {option.name: option.flag for option in OPTIONS}


def by_model(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each model, by its name."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.command.name, []).append(run)
    return found


def comparable_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the settings of each run, with the same keys for the same setting.

    A run with `--set train.optimizer.learning_rate=0.1` has this key, and the runs without
    `--set` have `optimizer.dense.learning_rate`. All of them get the key of `--set`.
    """
    settings = [dict(run.settings) for run in runs]
    for key in dict.fromkeys(chain.from_iterable(run.command.set for run in runs)):
        if (same := _same_setting(runs, key)) is not None:
            for each in settings:
                each[key] = each.pop(same, None)
    return settings


def _same_setting(runs: Sequence[Run], key: str) -> str | None:
    """Return the only setting whose value follows a key of `--set`; None if there are
    none or several."""
    changed = [run.command for run in runs if key in run.command.set]
    if any(key in run.command.settings for run in runs):
        return None
    last = key.rpartition(".")[2]
    found = [
        name
        for name in changed[0].settings
        if name.rpartition(".")[2] == last
        and all(each.settings.get(name) == each.set[key] for each in changed)
    ]
    return found[0] if len(found) == 1 else None


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings in which the runs differ: first those of `--set`, then
    options, then the rest of the spec."""
    of_set = chain.from_iterable(run.command.set for run in runs)
    options = chain.from_iterable(run.command.options for run in runs)
    settings = comparable_settings(runs)
    found = [
        key
        for key in dict.fromkeys(chain(of_set, options, *settings))
        if key not in _OUTPUTS
        and any(each.get(key) != settings[0].get(key) for each in settings)
    ]
    return [key for key in found if not _follows(key, found, settings)]


def _follows(
    key: str, keys: Sequence[str], settings: Sequence[Mapping[str, Any]]
) -> bool:
    """Return True if a setting differs only because of other settings in `keys`."""
    if key == MODEL_DIGEST:
        return any(other.startswith("graph.") for other in keys)
    if key == GRAPH_DIGEST:
        others = [other for other in keys if other != key]
        return _explain(others, key, settings)
    # Another update rule has other constants.
    section, _, last = key.rpartition(".")
    if not section.startswith(_OF_OPTIMIZER) or last in ("op", "learning_rate"):
        return False
    ops = [other for other in keys if other.rpartition(".")[2] == "op"]
    return _explain(ops, key, settings)


def _explain(
    keys: Sequence[str], key: str, settings: Sequence[Mapping[str, Any]]
) -> bool:
    """Return True if runs with equal values of `keys` have the same value of `key`."""
    values: dict[str, Any] = {}
    return all(
        values.setdefault(str([each.get(k) for k in keys]), each.get(key))
        == each.get(key)
        for each in settings
    )


def runs_view(runs: Sequence[Run], screen: Console) -> Iterator[RenderableType]:
    """Yield a table of the runs of each model, and the errors of failed runs.

    On a narrow screen, the start is left out first, then the metrics of training, then
    settings. The settings that are left out of the table follow in lines.
    """
    for of_model in by_model(runs).values():
        columns = [*_columns(of_model)]
        kept = fitting_columns(columns, screen)
        yield list_table(kept)
        settings = [each for each in columns if _SETTINGS <= each.drop < _TRAIN]
        yield from _left_out(of_model, [each for each in settings if each not in kept])
        for run in of_model:
            if run.end.ended in (FAILED, INTERRUPTED) and run.end.error:
                line = run.end.error.partition("\n")[0]
                style = "red" if run.end.ended == FAILED else ""
                yield Text(f"{run.folder.name}: {line}", style)


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
    evaluated = [_evaluation(run) for run in runs]
    evaluations = _metrics("eval", evaluated, first=compared, drop=1)
    trained = _metrics("train", [run.end.metrics for run in runs], drop=_TRAIN)
    steps = [format_count(run.end.steps) for run in runs]
    speeds = [run.end.samples_per_second for run in runs]
    started = [format_time(run.command.started) for run in runs]
    yield ListColumn("run", [run.folder.name for run in runs])
    yield from evaluations
    if any(run.end.eval for run in runs):
        yield ListColumn("at step", [_evaluation_step(run) for run in runs])
    yield from trained
    yield ListColumn("steps", steps, is_number=True)
    cells = [format_count(speed) if speed else "" for speed in speeds]
    yield ListColumn("samples/s", cells, is_number=True)
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


def _evaluation(run: Run) -> Mapping[str, float | None]:
    """Return the metrics of the best evaluation, or of the last one if the run does not
    compare its evaluations."""
    return run.end.best_eval or run.end.eval


def _evaluation_step(run: Run) -> str:
    """Return the step of the shown evaluation, and whether it is the best or the last."""
    end = run.end
    if end.best_eval:
        return f"{format_count(end.best_step or 0)} best"
    if not end.eval:
        return ""
    step = end.eval_step
    return "last" if step is None else f"{format_count(step)} last"


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


def setting_name(key: str, runs: Sequence[Run]) -> str:
    """Return the key of a setting, or the flag of an option.

    Another version of placer may have written the run: its options can be unknown.
    """
    is_option = any(key in run.command.options for run in runs)
    return _FLAGS.get(key, f"--{key.replace('_', '-')}") if is_option else key


def setting_text(value: Any) -> str:
    """Format a setting as in a spec, without its outer brackets; None is empty."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_inner(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_inner, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _inner(value: Any) -> str:
    text = setting_text(value)
    if isinstance(value, Mapping):
        return f"{{{text}}}"
    return f"[{text}]" if isinstance(value, list) else text


def runs_facts(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the facts about runs for JSON, and the settings in which the runs of each
    model differ."""
    models = by_model(runs)
    settings = {
        run.folder: each
        for of_model in models.values()
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
            name: differing_settings(of_model) for name, of_model in models.items()
        },
    }
