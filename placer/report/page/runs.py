"""The facts about runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placer.plan.settings_by_key import setting_text
from placer.report.best_run import best_runs, run_names
from placer.report.compared_settings import (
    comparable_settings,
    differing_settings,
    setting_name,
)
from placer.report.page.facts import RunFacts
from placer.report.run_about import (
    about_run,
    notes_of,
    other_load,
    staleness_of,
    waits_of,
)
from placer.report.run_files import Run


def run_facts(runs: Sequence[Run]) -> tuple[RunFacts, ...]:
    """Return the facts about runs, with the settings in which they differ."""
    best = best_runs(runs)
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
            best=_finite(run.evaluation),
            best_step=run.end.best_step if run.end.best_eval else run.end.eval_step,
            settings={
                setting_name(key, runs): setting_text(settings.get(key)) for key in keys
            },
            error=run.end.error or "",
            is_best=run in best,
            is_last=not run.end.best_eval,
            compared=run.command.monitor.metric if run.command.monitor else "",
            about=about_run(run),
            notes=(*filter(None, [run.end.diverged]), *notes_of(run)),
            load=other_load(run),
            waits=waits_of(run),
            staleness=staleness_of(run),
        )
        for name, run, settings in zip(
            run_names(runs), runs, comparable_settings(runs), strict=True
        )
    )


def _finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None}
