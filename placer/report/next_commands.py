"""The commands to try after a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from placer.plan.plan import Plan
from placer.report.outcome import best_path
from placer.report.shown_path import shown_path
from placer.runtime.control.checkpoint_settings import checkpoint_settings
from placer.runtime.control.options import Options
from placer.runtime.control.result import Result


def next_lines(
    plan: Plan,
    build: Path,
    options: Options,
    result: Result,
    folder: Path | None,
    *,
    is_here: bool,
) -> Iterator[str]:
    """Yield lines with the run's folder and commands that work when they are copied.

    Args:
        plan: the plan of the run.
        build: the build folder.
        options: the options of the run.
        result: the result of the run.
        folder: the folder of the run; None if it was not written.
        is_here: whether the nodes ran on this machine, which then has the parameters.
    """
    if folder is None:
        yield "next:"
    else:
        yield f"the run's folder is {shown_path(folder)}; next:"
        yield _line("report", folder)
    yield _line("show", build)
    if not plan.outputs or not is_here:
        return
    params = _parameters(plan, build, options, result)
    if params is None:
        yield "  to predict, train with --save-params FILE or --checkpoint DIR"
        return
    out = (folder or Path()) / "predictions.csv"
    yield _line("predict", build, "--params", params, "--out", out)


def _parameters(
    plan: Plan, build: Path, options: Options, result: Result
) -> Path | None:
    """Return the best or the last parameters that the run has kept; None without any."""
    if result.best is not None:
        return best_path(Path(result.best))
    if options.save_params is not None:
        return options.save_params
    settings = checkpoint_settings(plan, build, options)
    return None if settings is None else settings.folder


def _line(command: str, *words: str | Path) -> str:
    shown = (shown_path(w) if isinstance(w, Path) else w for w in words)
    return f"  placer {shlex.join([command, *map(str, shown)])}"
