"""Creates the folder of a run, such as `runs/NAME-1`, with its build."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from placer.checkpoint.choice import is_checkpoint
from placer.checkpoint.folder import has_none
from placer.errors import PlacerError
from placer.launcher.checks import check_launch
from placer.launcher.continued_run import run_of_checkpoint
from placer.launcher.data_check import check_data
from placer.launcher.run_command import command_of
from placer.launcher.run_record import RunRecord
from placer.launcher.supervise import Watch
from placer.plan.plan import OF_RUN, RUNS, Plan
from placer.plan.settings.data.stream import NOW
from placer.plan.write import write_build
from placer.report.run_files import (
    COMMAND,
    EVENTS,
    HISTORY,
    RESULT,
    TABLES,
    is_run,
)
from placer.runtime.control.events import Resumed
from placer.runtime.control.options import Options

if TYPE_CHECKING:
    # Only for types: launching a build does not need the compiler.
    from placer.compiler.driver import CompiledBuild
    from placer.compiler.frontend.python.overrides import Overrides


@dataclass(frozen=True)
class NewRun:
    """A run that has not started, in its folder.

    Attributes:
        build: the build folder.
        plan: the plan of the build.
        options: the options of the run, with a folder for its checkpoints.
        note: a function that must be called with each event of the run.
        is_continued: whether the folder is that of the resumed run, whose files it extends.
    """

    build: Path
    plan: Plan
    options: Options
    note: Watch
    is_continued: bool


@contextmanager
def new_run(
    compiled: CompiledBuild,
    options: Options,
    out: Path | None = None,
    *,
    overrides: Overrides | None = None,
    command: str = "",
) -> Iterator[NewRun]:
    """Return a context that creates the folder and the build of a run, and that records
    the run in the folder.

    A resumed run uses the folder of the run that saved the checkpoint; see
    `run_of_checkpoint`. If its build differs from the build of that run, it is the
    subfolder `build-2`, `build-3` and so on.

    If the run cannot start, the block raises before the first step is done, or the run has
    `--until now` and nothing to train, the new files are removed. A folder that already
    existed, or that contains other files, is kept.

    Args:
        compiled: the build.
        options: the options of the run.
        out: the folder of the run. It must be empty, or be missing, or be the folder of
            the resumed run. Default: the folder of the resumed run, or `runs/NAME-N` in
            the working folder, where N is 1 more than the largest number of a run of this
            model.
        overrides: the values of `--set`, for the record.
        command: the command line for the record. Default: that of this process.

    Raises:
        DataError, SpecErrors: a data source does not fit.
        PlacerError: the folder, or a file that an option names, cannot be used.
    """
    check_data(compiled.plan, compiled.folder, compiled.data_spans, code=False)
    created: list[Path] = []
    record: RunRecord | None = None
    name, has_build = compiled.plan.name, False
    continued = _continued(name, out, options.resume)
    if continued is None:
        build = _create_run_folder(name, out, created) / OF_RUN
    else:
        build, has_build = _build_of(continued, compiled)
    try:
        if not has_build:
            write_build(build, compiled.files_in(build))
        plan, options = check_launch(build, options, run=build.parent)
        facts = command_of(build, plan, options, overrides=overrides, command=command)
        with RunRecord(lambda _: build.parent, facts, options.history) as record:
            yield NewRun(build, plan, options, record.note, continued is not None)
        if options.until == NOW and continued is None and not record.has_trained:
            for name in (COMMAND, EVENTS, HISTORY, RESULT, TABLES):
                (build.parent / name).unlink(missing_ok=True)
            _remove(build, created)
    except BaseException:
        if not has_build and (record is None or not record.has_trained):
            if continued is None:
                _remove(build, created)
            else:
                shutil.rmtree(build, ignore_errors=True)
        raise


def _continued(name: str, out: Path | None, resume: Path | None) -> Path | None:
    """Return the folder of the run that a run of `placer train` continues, if any."""
    if resume is None or (not is_checkpoint(resume) and has_none(resume)):
        return None
    runs = RUNS if out is None else out.parent
    folder = run_of_checkpoint(resume, name, runs)
    if folder is None or (out is not None and out.resolve() != folder.resolve()):
        return None
    return folder


def _build_of(run: Path, compiled: CompiledBuild) -> tuple[Path, bool]:
    """Return the folder for a build in the folder of a continued run, and True if it
    already contains the same build."""
    for number in count(1):
        build = run / (OF_RUN if number == 1 else f"{OF_RUN}-{number}")
        if not build.exists():
            return build, False
        if _contains(build, compiled.files_in(build)):
            return build, True
    raise AssertionError("count has no end")


def _contains(build: Path, files: Mapping[str, bytes]) -> bool:
    """Return True if a build consists of these files."""
    try:
        return all((build / path).read_bytes() == files[path] for path in files)
    except OSError:  # A file is missing, or the build is damaged.
        return False


def recorded_launch(
    build: Path,
    plan: Plan,
    options: Options,
    *,
    command: str = "",
    is_here: bool = True,
) -> RunRecord:
    """Return the record of a launch of an existing build.

    The folder `NAME-N` of the run is in `_runs_of` the build, and is created at the first
    step. A resumed run uses the folder of the run that saved the checkpoint; see
    `run_of_checkpoint`. `is_here` says whether the nodes run on this machine.
    """
    runs = _runs_of(build)

    def open_folder(resumed: Resumed | None) -> Path:
        path = Path(resumed.path) if resumed is not None else None
        if path and (earlier := run_of_checkpoint(path, plan.name, runs)):
            return earlier
        return _create_numbered(runs, plan.name, [])

    facts = command_of(build, plan, options, command=command)
    return RunRecord(open_folder, facts, options.history, is_here=is_here)


def _runs_of(build: Path) -> Path:
    """Return the folder for the runs of an existing build.

    It is the folder `runs` next to the build. For a build in the folder of a run, it is
    the folder `runs` that contains that run, or that is next to it. If the place is not
    writable, it is `runs` in the working folder.
    """
    place = build.resolve().parent
    if is_run(place):
        place = place.parent
    if not os.access(place, os.W_OK | os.X_OK):
        return RUNS
    return place if place.name == RUNS.name else place / RUNS


def _remove(build: Path, created: Sequence[Path]) -> None:
    """Remove a build, and the folders that were created for it if they are empty then."""
    with suppress(OSError):  # The user may have removed them.
        if {*build.parent.iterdir()} - {build}:
            return
    shutil.rmtree(build, ignore_errors=True)
    for folder in reversed(created):
        with suppress(OSError):  # The folder contains other files.
            folder.rmdir()


def _create_run_folder(name: str, out: Path | None, created: list[Path]) -> Path:
    """Create the folder of a new run; append new folders to `created`, outer ones first."""
    try:
        if out is None:
            return _create_numbered(RUNS, name, created)
        _create(out, created)
    except OSError as error:
        raise PlacerError(
            f"cannot create the folder of the run '{out or RUNS}': {error.strerror}",
            hint="choose another folder: --out DIR (out=DIR)",
        ) from error
    if any(out.iterdir()):
        raise PlacerError(
            f"the folder '{out}' is not empty; a new run would mix its files "
            "with the others",
            hint="choose a new or empty folder, or omit --out (out=…) to get a "
            "numbered folder",
        )
    return out


def _create(folder: Path, created: list[Path]) -> None:
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    created += reversed(new)


def _create_numbered(runs: Path, name: str, created: list[Path]) -> Path:
    _create(runs, created)
    of_this_model = re.compile(rf"{re.escape(name)}-([0-9]{{1,9}})")
    matches = (of_this_model.fullmatch(each.name) for each in runs.iterdir())
    number = max((int(match[1]) for match in matches if match), default=0)
    while True:
        number += 1
        folder = runs / f"{name}-{number}"
        try:
            folder.mkdir(mode=0o755)
        except FileExistsError:  # Another run has just taken this number.
            continue
        created.append(folder)
        return folder
