"""Finds the subject of a report: a build, a spec, or runs with their build and trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from placer.compiler.build_or_spec import LoadedBuild, is_spec, load_build
from placer.errors import PlacerError
from placer.plan.plan import (
    OF_RUN,
    RUNS,
    build_hint,
    is_build,
    is_build_or_run,
)
from placer.report.best_run import best_runs, run_names
from placer.report.run_files import (
    GRAPH_DIGEST,
    RESULT,
    Run,
    find_readable_runs,
    is_run,
    read_run,
)
from placer.system.files.nearest_path import path_hint


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a report.

    Attributes:
        build: the build or the compiled spec; None for a run whose build is missing.
        runs: the runs, in the given order.
        trace: the trace file, or None.
        traces: the trace that each of several runs wrote, or None.
        is_own_trace: True if the trace was found in the options of the run.
        notes: sentences about the choices, for the output of the command.
        source: a sentence about the build, if the runs have different ones.
        overrides: the values of `--set`.
    """

    build: LoadedBuild | None
    runs: tuple[Run, ...] = ()
    trace: Path | None = None
    traces: tuple[Path | None, ...] = ()
    is_own_trace: bool = False
    notes: tuple[str, ...] = ()
    source: str = ""
    overrides: Sequence[str] = ()


def is_subject(path: Path) -> bool:
    """Return True for a build, a run or a spec."""
    if path.is_dir():
        return is_run(path) or is_build_or_run(path)
    return path.suffix in (".yaml", ".yml", ".py") and path.is_file()


def find_subject(
    paths: Sequence[Path],
    *,
    trace: Path | None = None,
    overrides: Sequence[str] = (),
    code: bool = True,
) -> Subject:
    """Return the subject of a report. Compile it if it is a spec.

    Args:
        paths: a build, a spec, or one or several runs. Empty for the newest run in `runs`.
        trace: a trace file of the build.
        overrides: values of `--set`, for a spec.
        code: False to refuse specs that run code.

    Raises:
        PlacerError: a path is neither a build nor a run nor a spec, or several paths are
            not all runs.
    """
    notes: tuple[str, ...] = ()
    if not paths:
        newest = _newest_run()
        paths = (newest,)
        notes = (f"'{newest}' is the newest run in '{RUNS}'",)
    for path in paths:
        _check(path)
    if any(is_run(path) for path in paths) or len(paths) > 1:
        return _runs(paths, trace, overrides, notes)
    (path,) = paths
    folder = path / OF_RUN if path.is_dir() and not is_build(path) else path
    build = load_build(folder, overrides=overrides, code=code)
    return Subject(build, trace=trace, overrides=overrides)


def _newest_run() -> Path:
    if not Path(RUNS).is_dir():
        raise PlacerError(
            f"this folder has no runs in '{RUNS}'",
            hint="name a build, a spec or a run, as in: placer report specs/digits.yaml",
        )
    runs, errors = find_readable_runs(Path(RUNS))
    if not runs:
        raise errors[0]
    return max(runs, key=lambda run: run.command.started).folder


def _check(path: Path) -> None:
    if path.is_dir():
        if is_run(path) or is_build_or_run(path):
            return
        runs = sorted(each.name for each in path.iterdir() if is_run(each))
        if runs:
            last = path / runs[-1]
            raise PlacerError(
                f"'{path}' is a folder of runs",
                hint=f"name one or several of its runs, as in: placer report {last}",
            )
        raise PlacerError(
            f"'{path}' is neither a build nor a run", hint=build_hint(path)
        )
    if not is_spec(path) or path.suffix == ".json":
        hint = (
            f"a trace is an option: --trace {path}" if path.suffix == ".json" else None
        )
        raise PlacerError(
            f"'{path}' is neither a build nor a run nor a spec",
            hint=hint or path_hint(path, is_subject, lists=True),
        )


def _runs(
    paths: Sequence[Path],
    trace: Path | None,
    overrides: Sequence[str],
    notes: tuple[str, ...],
) -> Subject:
    others = [path for path in paths if not is_run(path)]
    if others:
        kind = "a build" if others[0].is_dir() else "a spec"
        raise PlacerError(
            f"several paths must be runs, and '{others[0]}' is {kind}",
            hint=f"report on it alone: placer report {others[0]}",
        )
    _check_distinct(paths)
    if overrides:
        raise PlacerError(
            f"'{paths[0]}' is a run, and --set changes only the keys of a spec",
            hint="omit --set, or name the spec instead of the run",
        )
    if trace is not None and len(paths) > 1:
        raise PlacerError(
            "--trace is for one build or one run, and several runs are given",
            hint=f"report on the run with the trace alone: placer report {paths[0]}"
            f" --trace {trace}",
        )
    runs = tuple(read_run(path) for path in paths)
    folders = [run.build for run in runs]
    if len(runs) == 1:
        (run,), (folder,) = runs, folders
        if folder is None:
            if trace is not None:
                raise PlacerError(
                    f"the build of the run '{run.folder}' is missing, so --trace has no"
                    " effect",
                    hint=f"name another build: placer report BUILD --trace {trace}",
                )
            missing = (
                f"the build of '{run.folder}' is missing, so there is no placement"
            )
            return Subject(None, runs, notes=(*notes, missing))
        own = trace is None
        found, why = _own_trace(run) if own else (trace, "")
        notes = (*notes, why) if why else notes
        return Subject(load_build(folder), runs, found, (), own, notes)
    return _several(runs, folders, notes)


def _check_distinct(paths: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise PlacerError(
                f"the run '{path}' is given twice", hint="leave one of them out"
            )
        seen.add(path.resolve())


def _own_trace(run: Run) -> tuple[Path | None, str]:
    """Return the trace that a run wrote, and a sentence about it. The trace is None if
    the file is missing or another run has written it since."""
    named = run.command.options.get("trace")
    if named is None:
        return None, ""
    path = Path(str(named))
    if not path.is_file():
        return None, f"the trace '{path}' of the run is missing; name it with --trace"
    written = path.stat().st_mtime
    result = run.folder / RESULT
    until = result.stat().st_mtime + _LATER if result.is_file() else float("inf")
    if not run.command.started <= written <= until:
        return None, (
            f"the trace '{path}' was not written by the run; name it with --trace to use"
            " it"
        )
    return path, f"the trace is '{path}', which the run wrote"


_LATER = 60.0
"""The longest time between the result of a run and its trace, in seconds."""


def _several(
    runs: tuple[Run, ...],
    folders: Sequence[Path | None],
    notes: tuple[str, ...],
) -> Subject:
    """Return the subject of several runs: with their build, or with one of them."""
    graphs = {run.command.settings.get(GRAPH_DIGEST) for run in runs}
    best = best_runs(runs)
    is_best = [run in best for run in runs]
    order = sorted(range(len(runs)), key=lambda i: not is_best[i])
    chosen = next((i for i in order if folders[i] is not None), None)
    if chosen is None:
        missing = "the builds of the runs are missing, so there is no placement"
        return Subject(None, runs, notes=(*notes, missing))
    folder = folders[chosen]
    assert folder is not None
    source = ""
    if len(graphs) > 1:
        name = run_names(runs)[chosen]
        which = "the best run" if is_best[chosen] else "the first run with a build"
        source = (
            f"The picture shows the build of {name}, {which}. The builds of the runs differ;"
            " the section Runs lists the different settings."
        )
    traces = [_own_trace(run) for run in runs]
    notes = (*notes, *(why for found, why in traces if why and found is None))
    return Subject(
        load_build(folder),
        runs,
        traces=tuple(found for found, _ in traces),
        notes=notes,
        source=source,
    )
