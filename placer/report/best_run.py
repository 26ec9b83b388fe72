"""Finds the best of several runs and the run with the most similar settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from placer.plan.settings.evaluation_and_stopping import Best
from placer.plan.settings_by_key import setting_text
from placer.report.compared_settings import (
    by_model,
    comparable_settings,
    differing_settings,
    setting_name,
)
from placer.report.numbers import format_count, plural
from placer.report.run_files import GRAPH_DIGEST, MODEL_DIGEST, NAME, Run

_DIGESTS = {MODEL_DIGEST: "the model", GRAPH_DIGEST: "the placed graph"}
_NAMED = 5
"""The largest number of settings and of runs in a sentence."""


def run_names(runs: Sequence[Run]) -> list[str]:
    """Return a distinct name for each run: its folder name, or the path of its folder."""
    count = Counter(run.folder.name for run in runs)
    return [
        run.folder.name if count[run.folder.name] == 1 else str(run.folder)
        for run in runs
    ]


def best_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with the best evaluation; empty if the runs cannot be compared.

    Evaluations that are printed as the same number are equal.
    """
    if not runs or why_incomparable(runs):
        return []
    monitor = _monitor(runs)
    best: float | None = None
    for run in runs:
        value = _value(run, monitor)
        if isfinite(value) and monitor.improves(value, best):
            best = value
    if best is None:
        return []
    return [run for run in runs if _text(_value(run, monitor)) == _text(best)]


def why_incomparable(runs: Sequence[Run]) -> str:
    """Return why the evaluations of runs cannot be compared; empty if they can."""
    models = by_model(runs)
    if len(models) > 1:
        names = ", ".join(dict.fromkeys(of_one[0].command.name for of_one in models))
        return f"The runs train different models ({names}), so no run is the best."
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
    # The size of a batch does not change which rows are evaluated.
    evaluated = [
        key
        for key in differing_settings(runs)
        if key.startswith("data.eval.") and key != "data.eval.batch"
    ]
    if evaluated:
        keys = ", ".join(evaluated)
        return f"The runs evaluate different rows ({keys}), so no run is the best."
    return ""


def best_sentence(runs: Sequence[Run]) -> str:
    """Return sentences about the best run and how it differs from the run with the most
    similar settings, or why the runs cannot be compared. Empty without runs."""
    if not runs:
        return ""
    return why_incomparable(runs) or " ".join(_sentences(runs))


def _sentences(runs: Sequence[Run]) -> Iterator[str]:
    monitor, best = _monitor(runs), best_runs(runs)
    metric = f"eval {monitor.metric}"
    if not best:
        if any(run.end.eval for run in runs):
            which = "No run has a" if len(runs) > 1 else "The run has no"
            yield f"{which} finite {metric}."
        return
    names = dict(zip(map(id, runs), run_names(runs), strict=True))
    value = _text(_value(best[0], monitor))
    steps = list(dict.fromkeys(format_count(run.end.best_step or 0) for run in best))
    first = names[id(best[0])]
    differences = _Differences(runs)
    if len(best) > 1:
        at = f"at step{'s' * (len(steps) > 1)} {_listed(_few(steps))}"
        found = _listed(_few([names[id(run)] for run in best]))
        yield f"{found} have the best {metric}: {value} {at}."
    else:
        which = "the" if len(runs) > 1 else "its"
        yield f"{first} has {which} best {metric} at step {steps[0]}: {value}."
    tied = [(run, differences.between(run, best[0])) for run in best[1:]]
    if equal := [names[id(run)] for run, changes in tied if not changes]:
        have = "has" if len(equal) == 1 else "have"
        yield f"{_listed(_few(equal))} {have} the same settings as {first}."
    for run, changes in [each for each in tied if each[1]][:_NAMED]:
        yield _pair(names[id(run)], first, changes)
    others = {
        id(run): (run, differences.between(run, best[0]))
        for run in runs
        if run not in best and isfinite(_value(run, monitor))
    }
    changed = [each for each in others.values() if each[1]]
    for run in [run for run, changes in others.values() if not changes][:_NAMED]:
        reached = _text(_value(run, monitor))
        yield f"{names[id(run)]} reached {reached} with the same settings as {first}."
    if changed:
        run, changes = min(changed, key=lambda each: len(each[1]))
        reached = _text(_value(run, monitor))
        name = names[id(run)]
        if len(changed) > 1:
            yield f"The settings of {name} are the most similar to those of {first}."
        yield f"{name} reached {reached}."
        yield _pair(name, first, changes)
    yield from _cut_short(runs, names)


def _cut_short(runs: Sequence[Run], names: Mapping[int, str]) -> Iterator[str]:
    """Yield a sentence about each run that `--steps` or `--trace` make another experiment."""
    most = max(run.end.steps for run in runs)
    for run in runs:
        name, options = names[id(run)], run.command.options
        if "steps" in options and run.end.steps < most:
            yield (
                f"{name} trained only {format_count(run.end.steps)} of"
                f" {format_count(most)} steps (--steps), so its metrics and its speed are"
                " those of a shorter run."
            )
        if "trace" in options and len(runs) > 1:
            yield f"{name} was traced, which makes steps slower."


def _pair(name: str, other: str, changes: Sequence[str]) -> str:
    """Return a sentence about the differences between the settings of two runs."""
    if len(changes) == 1:
        return f"{name} differs from {other} only in {changes[0]}."
    count = plural(len(changes), "setting")
    return f"{name} differs from {other} in {count}: {_listed(_few(changes))}."


class _Differences:
    """The settings in which runs differ, computed once for all pairs of them."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._keys = differing_settings(runs)
        settings = comparable_settings(runs)
        self._settings = dict(zip(map(id, runs), settings, strict=True))

    def between(self, other: Run, best: Run) -> list[str]:
        """Return the settings of another run that differ from those of the best run."""
        return list(self._between(other, best))

    def _between(self, other: Run, best: Run) -> Iterator[str]:
        changed = [
            (
                key,
                *(setting_text(self._settings[id(r)].get(key)) for r in (other, best)),
            )
            for key in self._keys
        ]
        changed = [each for each in changed if each[1] != each[2]]
        for key, value, best_value in changed:
            if key == NAME and len(changed) > 1:
                continue  # The name of a model changes nothing else.
            if key in _DIGESTS:
                yield _DIGESTS[key]
            else:
                values = f"{value or 'unset'} instead of {best_value or 'unset'}"
                yield f"{setting_name(key, self._runs)} ({values})"


def _few(words: Sequence[str]) -> list[str]:
    more = len(words) - _NAMED
    return [*words[:_NAMED], f"{more} more"] if more > 0 else list(words)


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _monitor(runs: Sequence[Run]) -> Best:
    monitor = runs[0].command.monitor
    assert monitor is not None
    return monitor


def _value(run: Run, monitor: Best) -> float:
    """Return the best value of a run's monitored metric; NaN without an evaluation."""
    value = run.end.best_eval.get(monitor.metric)
    return float("nan") if value is None else value


def _text(value: float) -> str:
    return f"{value:.4g}"
