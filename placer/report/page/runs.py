"""The facts about runs, and a sentence about the best one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from placer.plan.settings.evaluation_and_stopping import Best
from placer.report.numbers import format_count
from placer.report.page.facts import RunFacts
from placer.report.run_files import GRAPH_DIGEST, MODEL_DIGEST, Run
from placer.report.runs import (
    by_model,
    comparable_settings,
    differing_settings,
    setting_name,
    setting_text,
)

_DIGESTS = {MODEL_DIGEST: "another model", GRAPH_DIGEST: "another graph"}
_NAMED = 3
"""The number of settings and of values in a sentence."""


def run_names(runs: Sequence[Run]) -> list[str]:
    """Return a distinct name for each run: its folder name, or the path of its folder."""
    count = Counter(run.folder.name for run in runs)
    return [
        run.folder.name if count[run.folder.name] == 1 else str(run.folder)
        for run in runs
    ]


def run_facts(runs: Sequence[Run]) -> tuple[RunFacts, ...]:
    """Return the facts about runs, with the settings in which they differ."""
    best = _best_runs(runs)
    keys = differing_settings(runs)
    return tuple(
        RunFacts(
            name=name,
            folder=str(run.folder),
            ended=run.end.ended,
            steps=run.end.steps,
            seconds=run.end.seconds,
            samples_per_second=run.end.samples_per_second,
            metrics=_finite(run.end.metrics),
            best=_finite(run.end.best_eval or run.end.eval),
            best_step=run.end.best_step if run.end.best_eval else run.end.eval_step,
            settings={
                setting_name(key, runs): setting_text(settings.get(key)) for key in keys
            },
            error=run.end.error or "",
            is_best=run in best,
            is_last=not run.end.best_eval,
        )
        for name, run, settings in zip(
            run_names(runs), runs, comparable_settings(runs), strict=True
        )
    )


def _finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None}


def best_sentence(runs: Sequence[Run]) -> str:
    """Return which run is the best and how its settings differ, or why the runs cannot be
    compared. Empty without runs."""
    if not runs:
        return ""
    if problem := _incomparable(runs):
        return problem
    best = _best_runs(runs)
    monitor = runs[0].command.monitor
    assert monitor is not None
    if not best:
        return f"No run has an evaluation with a finite {monitor.metric}."
    names = dict(zip(map(id, runs), run_names(runs), strict=True))
    value = f"{_value(best[0], monitor):.4g}"
    steps = [format_count(run.end.best_step or 0) for run in best]
    if len(best) > 1:
        found = " and ".join(names[id(run)] for run in best)
        at = f"{value} at steps {' and '.join(steps)}"
        return f"{found} have the best {monitor.metric}, {at}."
    others = [run for run in runs if run is not best[0]]
    changed = list(_changes(best[0], others, runs))
    shown = "; ".join(changed[:_NAMED])
    more = len(changed) - _NAMED
    if more > 0:
        shown += f"; and {more} more setting{'s' * (more > 1)}"
    return (
        f"{names[id(best[0])]} has {'the' if others else 'its'} best {monitor.metric},"
        f" {value} at step {steps[0]}"
        f"{f' ({shown})' if shown else ''}."
    )


def _incomparable(runs: Sequence[Run]) -> str:
    """Return why the evaluations of runs cannot be compared; empty if they can."""
    models = by_model(runs)
    if len(models) > 1:
        return (
            f"The runs train different models ({', '.join(models)}): none is the best."
        )
    monitors = [run.command.monitor for run in runs]
    known = dict.fromkeys((m.metric, m.mode) for m in monitors if m is not None)
    if None in monitors:
        unknown = (
            "best run is unknown, because the spec of a run"
            if len(runs) > 1
            else "best evaluation is unknown, because the spec"
        )
        return (
            f"The {unknown} names no metric to compare."
            " Set 'train.early_stopping' or 'train.checkpoint.best'."
        )
    if len(known) > 1:
        metrics = ", ".join(f"{metric} ({mode})" for metric, mode in known)
        return f"The runs compare their evaluations by different metrics: {metrics}."
    evaluated = [
        key for key in differing_settings(runs) if key.startswith("data.eval.")
    ]
    # The size of a batch does not change which rows are evaluated.
    evaluated = [key for key in evaluated if key != "data.eval.batch"]
    if evaluated:
        keys = ", ".join(evaluated)
        return f"The runs evaluate different rows ({keys}): none is the best."
    return ""


def _best_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with the best evaluation; empty if the runs cannot be compared."""
    if not runs or _incomparable(runs):
        return []
    monitor = runs[0].command.monitor
    assert monitor is not None
    found: list[Run] = []
    for run in runs:
        value = _value(run, monitor)
        if not isfinite(value):
            continue
        best = _value(found[0], monitor) if found else None
        if monitor.improves(value, best):
            found = [run]
        elif value == best:
            found.append(run)
    return found


def _value(run: Run, monitor: Best) -> float:
    """Return the best value of a run's monitored metric; NaN without an evaluation."""
    value = run.end.best_eval.get(monitor.metric)
    return float("nan") if value is None else value


def _changes(best: Run, others: Sequence[Run], runs: Sequence[Run]) -> Iterator[str]:
    """Yield the settings of the best run that differ from those of other runs."""
    settings = comparable_settings(runs)
    own_settings = settings[list(runs).index(best)]
    for key in differing_settings(runs):
        own = setting_text(own_settings.get(key))
        values = (
            setting_text(each.get(key))
            for run, each in zip(runs, settings, strict=True)
            if run in others
        )
        different = [value for value in dict.fromkeys(values) if value != own]
        if not different:
            continue
        if key in _DIGESTS:
            yield _DIGESTS[key]
            continue
        shown = " or ".join(value or "none" for value in different[:_NAMED])
        if len(different) > _NAMED:
            shown += " or others"
        yield f"{setting_name(key, runs)} {own or 'none'} instead of {shown}"
